"""Half-precision numbers that a script computes where no step is recorded, and FP32's for as long as it is cheap."""

import threading
from time import thread_time
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args, Kwargs, run_op
from ampcheck.observe.reference.effects import Effects, written
from ampcheck.observe.reference.lineage import MOVES
from ampcheck.observe.reference.shadow import Follow, Shadow
from ampcheck.observe.reference.storage import Reference
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import holds_low, readable, tensors_of, version_of
from ampcheck.values.trace import Phase, Site

#: Seconds that FP32 may take beside all of them together, and operations that are looked at.
_SECONDS, _OPERATIONS = 6.0, 500_000
#: Elements of memory beyond which FP32 keeps nothing beside it; and of all that it keeps.
_LARGE, _MOST = 2**24, 2**26
#: Operations that put numbers elsewhere, or round them once.
_STORES = MOVES | frozenset(
    """_to_copy copy_ to index_put_ index_put _index_put_impl_ fill_ zero_ scatter scatter_ masked_fill_ _pin_memory
    zeros_like ones_like full_like new_zeros new_ones new_full index_copy_ index_fill_ relu_ sign abs amax amin max min
    sort topk unfold_copy repeat_interleave detach_ resize_as_ set_""".split()
)


class Results(Shadow):
    """The references of what is computed there, while nobody else writes it."""

    def __init__(self, seconds: float = 0.0, operations: int = 0) -> None:
        """Begin with none; FP32 may take so many seconds, and so many operations are looked at."""
        super().__init__(run_op)
        self._limits = seconds or _SECONDS, operations or _OPERATIONS
        self.lock = threading.RLock()
        self.heard = False  #: something was in half precision
        self.computed: tuple[str, int] | None = None  #: where half-precision numbers first came of others
        self.open, self.given_up = True, False
        self._spent, self._looked_at, self._kept = 0.0, 0, 0
        self._versions: dict[int, int | None] = {}  #: by storage; None while it is written
        self._made: set[int] = set()  #: storages
        self._op = ""  #: that runs
        self._moved: Site | None = None  #: what has made the numbers that it moves
        self._came: Site | None = None  #: what has made numbers in half precision that it reads
        self._overflowed: dict[int, Site] = {}  #: by storage, where numbers overflowed that it is made of
        self._over: Site | None = None  #: the same of what it reads
        self._begun: dict[int, int] = {}  #: by storage, how many steps the script had taken
        self.steps = 0  #: how many it has taken now
        self.gave_way = self._gives_way

    def _gives_way(self, _: object) -> None:
        """Follow nothing any more: what comes from now on is in half precision, as far as anybody knows."""
        self.open, self.given_up = False, True
        if self.heard and self.computed is None:
            self.computed = "", 0

    def known(self, tensor: torch.Tensor) -> Reference | None:
        """Return the reference of a tensor, if nobody has written it since, or does so now."""
        found = self._beside(tensor)
        return None if self._versions.get(tensor.untyped_storage()._cdata) is None else found

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        began = thread_time()
        tensors = [*tensors_of((*args, *kwargs.values()))]
        if rule.message or _has_gradient(tensors) or any(map(_is_large, tensors)):
            return None
        with self.lock, torch._C._DisableTorchDispatch():
            follow = super()._follow(rule, func, args, kwargs)
            targets = [tensor for tensor in tensors_of(written(rule, args, kwargs)) if readable(tensor)]
            places = {tensor.untyped_storage()._cdata: version_of(tensor) for tensor in targets}
            self._versions.update(dict.fromkeys(places))
            came, over = self._made_of(args), self._over_of(tensors)
            moved = came if rule.name in MOVES else None
            states = [] if rule.name in _STORES else [one for one in targets if self._is_state(one)]
        self._looked_at += 1
        self._spent += thread_time() - began
        if self._spent > self._limits[0] or self._looked_at > self._limits[1]:
            self._gives_way(None)

        def and_note(out: Any) -> None:
            began = thread_time()
            with self.lock, torch._C._DisableTorchDispatch():
                if follow is not None and not any(map(_is_large, tensors_of((out,)))):
                    self._op, self._moved, self._came, self._over = rule.name, moved, came, over
                    follow(out)
                for tensor in states:
                    self.forget(tensor)
                for held in filter(None, map(self._references.get, places)):
                    held.made = held.made or came  # it was written in place
                # autograd counts a write when it is done
                self._versions.update({place: version + 1 for place, version in places.items()})
            self._spent += thread_time() - began
            own = all(place in self._made for place in places)  # another's is a state: others judge these
            computes = own and rule.name not in _STORES
            if self.computed is None and computes and holds_low(tensors) and holds_low((out,)):
                self.computed = running_line()

        return and_note

    def _beside(self, tensor: torch.Tensor) -> Reference | None:
        found = super()._beside(tensor)
        if found is None:
            return None
        version = self._versions.get(tensor.untyped_storage()._cdata)
        if version is not None and version != version_of(tensor):  # somebody else has written it
            self.forget(tensor)
            return None
        return found

    def _made_of(self, args: Args) -> Site | None:
        """Return what has made the first of some tensors in half precision of which that is known."""
        held = (
            self._references.get(one.untyped_storage()._cdata) for one in tensors_of(args) if readable(one)
        )
        return next((one.made for one in held if one is not None and one.made is not None), None)

    def _over_of(self, tensors: list[torch.Tensor]) -> Site | None:
        keys = (one.untyped_storage()._cdata for one in tensors if readable(one))
        return next((self._overflowed[key] for key in keys if key in self._overflowed), None)

    def _is_state(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is changed from step to step: what it has lost by then is judged as a state's."""
        return self._begun.get(tensor.untyped_storage()._cdata, self.steps) < self.steps - 1

    def _begin(self, tensor: torch.Tensor) -> None:
        place = tensor.untyped_storage()._cdata
        self._versions[place], self._begun[place] = version_of(tensor), self.steps

    def _adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        self._begin(tensor)
        return super()._adopt(tensor)

    def _keep(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        self._begin(tensor)
        place = tensor.untyped_storage()._cdata
        self._made.add(place)
        super()._keep(tensor, wide)
        made, over = self._came, self._over
        if tensor.dtype in HALVES:
            made = self._moved or Site(
                "", self._op, "output", Phase.FORWARD, str(tensor.dtype)[6:], *running_line()
            )
            # A GPU would be waited for.
            over = over or (
                made if tensor.is_cpu and bool((wide.isfinite() & ~tensor.isfinite()).any()) else None
            )
        self._overflowed.pop(place, None)
        if over is not None:
            self._overflowed[place] = over
        if place in self._references:
            self._references[place].made = over or made

    def _hold(self, reference: Reference) -> None:
        self.heard = True
        super()._hold(reference)
        self._kept += reference.flat.numel()
        if self._kept > _MOST:
            self._kept = sum(
                one.flat.numel() for one in self._references.values() if not one.storage.expired()
            )
            if self._kept > _MOST:
                self._gives_way(None)


def _has_gradient(tensors: list[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_large(tensor: torch.Tensor) -> bool:
    return readable(tensor) and tensor.untyped_storage().nbytes() > _LARGE * tensor.element_size()
