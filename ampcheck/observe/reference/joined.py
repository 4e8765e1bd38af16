"""The references of a recorded step, which takes over what other threads have computed before it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.reference.effects import Effects
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.reference.storage import Reference
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, version_of

if TYPE_CHECKING:
    from ampcheck.values.trace import Site

#: Returns the reference of a tensor that another thread has made.
Elsewhere = Callable[[torch.Tensor], Reference | None]
#: Hears of an operation that has run, with what it was given and what it gave.
Sends = Callable[[Any, Args, Any], None]


class Joined(Shadow):
    """Knows the references of tensors that another thread has made, outside of any step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.elsewhere: Elsewhere | None = None
        self.sends: Sends | None = None
        #: What the running operation reads of that, how often it had been written, and its reference.
        self._lent: list[tuple[torch.Tensor, int, Reference]] = []
        self.outside: dict[
            tuple[str, int], Site
        ] = {}  #: by the line that reads it first, what has made some of it

    def run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run an operation and its reference; other threads may be sent what it gives."""
        out = super().run(func, args, kwargs)
        if self.sends is not None:
            self.sends(func, args, out)
        return out

    def _beside(self, tensor: torch.Tensor) -> Reference | None:
        found = super()._beside(tensor)
        if self.elsewhere is None or not readable(tensor):
            return found
        made = self.elsewhere(tensor)  # which hears of what is read
        if found is not None or made is None:
            return found
        self._lent.append((tensor, version_of(tensor), made))
        return made

    def made_in(self, tensors: Iterable[torch.Tensor | None]) -> str:
        """Return the dtype in which another thread has made what was read, or some tensors; '' where none has."""
        found = [] if self.elsewhere is None else [self.elsewhere(one) for one in tensors if one is not None]
        sites = (*self.outside.values(), *(one.made for one in found if one is not None))
        return next((site.dtype for site in sites if site is not None), "")

    def _follow(self, *given: Any) -> Callable[[Any], None] | None:
        self._lent.clear()
        follow = super()._follow(*given)
        for _, _, found in self._lent[:1]:
            if found.made is not None:
                self.outside.setdefault(running_line(), found.made)
        return follow

    def _mirror(self, rule: Effects, func: Any, out: Any, values: Any, targets: list[torch.Tensor]) -> None:
        lent = list(self._lent)
        super()._mirror(rule, func, out, values, targets)
        if self.elsewhere is not None and any(
            version_of(tensor) != version or self.elsewhere(tensor) is not found
            for tensor, version, found in lent
            if not any(tensor is target for target in targets)
        ):
            self._take(out)  # another thread has written it meanwhile: nobody knows which numbers were read
        self._lent.clear()

    def _begin_beside(self, targets: list[torch.Tensor]) -> None:
        for tensor in targets:
            found = self._beside(tensor)
            if found is not None and tensor.untyped_storage()._cdata not in self._references:
                # What is written here from now on is this step's.
                self._hold(Reference(tensor.untyped_storage(), found.flat.clone(), found.known))
        super()._begin_beside(targets)
