"""FP32 weights that a script fills from half precision between steps: what rounds them takes their updates away."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.model.updates import update_loss
from ampcheck.observe.modes import OwnMode
from ampcheck.observe.reference.effects import effects, written
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of
from ampcheck.observe.unusual import in_memory, plain

if TYPE_CHECKING:
    from ampcheck.values.trace import UpdateLoss

#: Operations that do nothing but copy, or cast.
_COPIES = frozenset("_to_copy clone copy_ _foreach_copy_".split())
#: Elements that are kept of one optimizer's weights, in all.
_MOST = 2**16
#: Optimizers between whose steps is listened, at most: a script may make one after the other.
_LISTENERS = 4


class _Writes(OwnMode):
    """Takes note of the lines that write weights, and whether they write copies of them."""

    over = (WideCompute,)

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._weights = {_place(one) for one in weights if readable(one)}
        self._copies = set(self._weights)  #: storages of what holds the weights as the step has left them
        self.places: dict[int, tuple[str, int]] = {}  #: by storage
        self._rounded: set[int] = set()  #: weights that were written from such copies

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        """Run an operation."""
        given = kwargs or {}
        out = func(*args, **given)
        if not types:
            rule = effects(func)
            targets = {_place(one) for one in tensors_of(written(rule, args, given)) if readable(one)}
            if written_weights := targets & self._weights:
                self.places |= dict.fromkeys(written_weights, running_line())
            sources = {_place(one) for one in tensors_of(args[-1:] if targets else args[:1]) if readable(one)}
            if rule.name in _COPIES and not sources.isdisjoint(self._copies):
                self._rounded |= targets & self._weights
                self._copies |= {_place(one) for one in tensors_of((out,)) if readable(one)}
        return out

    def from_itself(self, weight: torch.Tensor) -> bool:
        """Tell whether a weight was written from what it held, and from nothing that may hold more."""
        place = _place(weight)
        return place in self._rounded or (place in self._copies and place not in self._weights)


def _place(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


class Refilled:
    """Looks at some weights as an optimizer's step leaves them, and as its next one finds them.

    At first it is the first step. What was rounded then is looked at once more, and the lines that write it.
    """

    def __init__(self, named: Named) -> None:
        """Begin with none; `named` says what a parameter is called."""
        self._named = named
        #: By optimizer, its weights before and after a step, until the next one.
        self.kept: dict[str, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]] = {}
        self._writes: dict[str, _Writes] = {}  #: by optimizer, what listens between its steps
        self.losses: list[UpdateLoss] = []
        #: Weights that came back rounded, from where a server may hold more than that.
        self.from_elsewhere: dict[str, None] = {}
        self._in_fp32: list[
            weakref.ref[torch.Tensor]
        ] = []  #: that came back as a step has left them, not in half

    def begins(self, label: str, parameters: Iterable[Any], place: Callable[[], tuple[str, int]]) -> None:
        """Compare what a step finds with what the one before has left; `place` says where it is taken."""
        if (writes := self._writes.pop(label, None)) is not None:
            writes.__exit__()
        with unseen():
            if label not in self.kept:
                chosen = [
                    one for one in _chosen(parameters) if _varies(one[1])
                ]  # what is alike is half anyway
                self.kept[label] = [(one, held.clone(), None) for one, held in chosen]
                return
            kept, self.kept[label] = self.kept[label], []
            for parameter, before, after in kept:
                now = plain(parameter)
                now = None if now is None or not in_memory(now) else now
                known = after is not None and now is not None and now.shape == before.shape
                if after is None or now is None or not known or not _was_rounded(now.detach(), after):
                    if now is not None and not _is_half(now.detach()):
                        self._in_fp32.append(weakref.ref(parameter))
                    continue
                if not _is_half(before):
                    self.kept[label].append((parameter, now.detach().clone(), None))
                    continue
                if writes is None or not writes.from_itself(now):
                    self.from_elsewhere[self._named(parameter)[1].lstrip(".")] = None
                    continue  # a server may hold more than it sends: HalfRounds looks at that
                loss = update_loss(self._named(parameter)[1], after - before, now.detach() - before)
                file, line = writes.places.get(_place(now)) or place()
                self.losses.append(replace(loss, file=file, line=line, stepped=True, in_fp32=True))

    def in_fp32(self) -> Iterable[torch.Tensor]:
        """Yield weights that training keeps in FP32, if it keeps all so."""
        if not (self.losses or self.from_elsewhere or any(self.kept.values())):
            yield from (one for known in self._in_fp32 if (one := known()) is not None)

    def ends(self, label: str) -> None:
        """Keep what a step has left."""
        with unseen():
            again = any(_is_half(before) for _, before, _ in self.kept[label])
            self.kept[label] = [(one, before, _copy(one)) for one, before, _ in self.kept[label]]
        if again:
            while len(self._writes) >= _LISTENERS:  # each costs every operation of the thread
                self._writes.pop(next(iter(self._writes))).__exit__()
            self._writes[label] = _Writes(one for one, _, _ in self.kept[label])
            self._writes[label].__enter__()

    def end(self) -> None:
        """Listen no more."""
        while self._writes:
            self._writes.popitem()[1].__exit__()


def _copy(parameter: torch.Tensor) -> torch.Tensor | None:
    held = plain(parameter)
    return None if held is None or not in_memory(held) else held.detach().clone()


def _chosen(parameters: Iterable[Any]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Yield weights in FP32."""
    elements = 0
    for parameter in parameters:
        held = plain(parameter) if isinstance(parameter, torch.Tensor) else None
        if held is None or held.dtype is not torch.float32 or elements + held.numel() > _MOST:
            continue
        elements += held.numel()
        if not in_memory(held) or held.is_meta:
            continue
        if held.layout is torch.strided and held.numel():
            yield parameter, held.detach()


def _varies(weights: torch.Tensor) -> bool:
    """Tell whether weights hold several numbers."""
    return bool((weights != weights.flatten()[0]).any())


def _was_rounded(now: torch.Tensor, after: torch.Tensor) -> bool:
    """Tell whether weights are what a step has left, rounded to half precision; limits give them other numbers."""
    if torch.equal(now, after) or not _varies(now):
        return False
    return any(torch.equal(after.to(dtype).to(after.dtype), now) for dtype in HALVES)


def _is_half(tensor: torch.Tensor) -> bool:
    return any(torch.equal(tensor.to(dtype).to(tensor.dtype), tensor) for dtype in HALVES)
