"""Half-precision numbers that a script hands from one step to the next: a state, a phase, a memory.

FP32 runs beside a step from numbers that are there when it begins. Of those that half precision has rounded it would
have others, so some steps in a row are compared in which FP32 goes on from its own.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.script.state.half_judged import UNITS, falls_behind, short_of
from ampcheck.observe.script.state.naming import NAMELESS, names_of
from ampcheck.observe.statistics.memory import instances, readable, version_of
from ampcheck.observe.statistics.units import unit_of
from ampcheck.observe.unusual import in_memory
from ampcheck.values.trace import Site, UpdateLoss

#: By name, what a script has in half precision, FP32 in its place, and what has made it, where that is known.
Numbers = Mapping[str, tuple[torch.Tensor, torch.Tensor, Site | None]]
#: By name, what a script had, and how far FP32 moves that in a step.
Paces = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
#: Part of what FP32 moves that must stand still for its tensor to be named; and of all, what must move for a loss.
_MOST, _MANY = 0.5, 0.25
#: Of the way that FP32 goes, what half precision goes in whatever direction where it falls behind.
_SLOW = 0.5
#: Part of FP32's numbers by which half precision's differ where they are others altogether.
_OTHER = 0.5
#: A storage, and which of its elements a tensor has: several tensors may share one.
_Part = tuple[int, ...]


class _Kept(NamedTuple):
    storage: StorageWeakRef
    version: int  #: how often it had been written
    wide: tuple[torch.Tensor | None, ...]  #: what each run beside the script has there
    made: Site | None  #: what has made it, where that was seen


class Carried:
    """What is there in half precision when a step ends, and what FP32 has in its place.

    The first of the runs beside the script is FP32's.
    """

    def __init__(
        self,
        shadows: Sequence[Shadow],
        weights: Iterable[torch.Tensor],
        is_older: Callable[[int], bool],
        made: Mapping[int, Site | None],
        *,
        asked: bool,
        was_read: bool = False,
    ) -> None:
        """Keep what is no weight and no gradient of one, and of which FP32 knows all: nothing of it `is_older`.

        Where nothing has `asked` for it, only what no gradient flows to. The step that ends may have read what the one
        before it left.
        """
        self.asked, self.was_read = asked, was_read
        held = [one for weight in weights for one in (weight, gradient_of(weight)) if one is not None]
        known = {one.untyped_storage()._cdata for one in held if readable(one)}
        self.shapes = {one.shape for one in held}  #: of weights
        self._kept: dict[_Part, _Kept] = {}
        for tensor, part in _half():
            wide, place = tuple(shadow.of(tensor) for shadow in shadows), part[0]
            kept = asked or not tensor.requires_grad
            if kept and place not in known and wide[0] is not None and not is_older(place):
                copies = tuple(None if one is None else one.clone() for one in wide)
                own = StorageWeakRef(tensor.untyped_storage())
                self._kept[part] = _Kept(own, version_of(tensor), copies, made.get(place))

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self._kept)

    def numbers(self) -> Numbers:
        """Return by name what the script has, and FP32."""
        held = [(tensor, kept) for tensor, part in _half() if (kept := self._kept.get(part)) is not None]
        names = names_of([tensor for tensor, _ in held])
        return {
            names[id(tensor)]: (tensor.detach().clone(), wide, kept.made)
            for tensor, kept in held
            if (wide := kept.wide[0]) is not None and wide.shape == tensor.shape
        }

    @property
    def places(self) -> dict[int, Site | None]:
        """The storages of what is kept, and what has made it, where that was seen."""
        return {part[0]: kept.made for part, kept in self._kept.items()}

    def give(self, shadows: Sequence[Shadow]) -> None:
        """Let the runs beside a step begin with their own numbers, where nothing has written the script's since."""
        for tensor, part in _half():
            kept = self._kept.get(part)
            if kept is None or kept.storage.expired() or version_of(tensor) != kept.version:
                continue
            for at, shadow in enumerate(shadows):
                wide = kept.wide[min(at, len(kept.wide) - 1)]
                if wide is not None and wide.shape == tensor.shape:
                    shadow.replace(tensor, wide)


def stands_still(
    before: Numbers, after: Numbers, weights: Container[torch.Size]
) -> dict[str, UpdateLoss | None]:
    """Return what stands still or falls behind where FP32 moves on, by as much as half precision can tell apart.

    What that comes to is known where many of the numbers move. It is not where there are weights of the same shape and
    FP32 has other numbers altogether: an optimizer may keep there what rounding takes from these.
    """
    found: dict[str, UpdateLoss | None] = {}
    for name in before.keys() & after.keys():
        (first, start, _), (last, end, made) = before[name], after[name]
        if first.shape == last.shape and first.dtype is last.dtype and first.device == last.device:
            moves = (end.float() - start.float()).abs() >= unit_of(last)
            stuck, moved = (int(float(one.sum())) for one in (moves & (first == last), moves))
            way, went = end.float() - start.float(), last.float() - first.float()
            slow = falls_behind(way, went, unit_of(last)) and went.norm() < _SLOW * way.norm()
            if stuck > _MOST * moved or slow:
                file, line = (made.file, made.line) if made is not None else ("", 0)
                other = last.shape in weights and (end.float() - last.float()).norm() > _OTHER * end.norm()
                known = moved >= _MANY * last.numel() and not other
                moved, lost = short_of(way, went) if slow else (moved, stuck)
                found[name] = UpdateLoss(name, moved, lost, file=file, line=line) if known else None
    return found


def paces(before: Numbers, after: Numbers, steps: int) -> Paces:
    """Return by name what the script had after some steps, and how far FP32 went in each of them."""
    return {
        name: (last, (end.float() - before[name][1].float()).abs() / max(1, steps))
        for name, (last, end, _) in after.items()
        if name in before and before[name][1].shape == end.shape
    }


def outgrown(known: Paces, units: float = UNITS / 2, times: float = 1.0) -> list[str]:
    """Return what has grown since: its changes may be less by now than so many units of half precision.

    A unit has to be more than so many `times` as large as it was.

    A script that has ended has no variables any more: what is left is known by its shape.
    """
    held = [tensor for tensor, _ in _half()] if known else []
    names, found = names_of(held) if held else {}, []
    if not known.keys() & names.values():
        by_shape = {last.shape: name for name, (last, _) in known.items()}
        left = [tensor for tensor in held if names[id(tensor)].startswith(NAMELESS)]
        names |= {id(tensor): by_shape.get(tensor.shape, "") for tensor in left}
    for tensor in held:
        last, pace = known.get(name := names[id(tensor)], (None, None))
        if last is None or pace is None or last.shape != tensor.shape or last.device != tensor.device:
            continue
        unit = unit_of(tensor.detach())
        grown = (unit > times * unit_of(last)) & (pace < units * unit) & (pace > 0)
        found += [name] * bool(2 * grown.sum() > tensor.numel())
    return sorted(set(found))


def _half() -> Iterator[tuple[torch.Tensor, _Part]]:
    """Yield the tensors in half precision that are there, and what part of which storage each is."""
    for tensor in instances(torch.Tensor, torch.nn.Parameter):
        if tensor.dtype in HALVES and readable(tensor) and in_memory(tensor):
            part = (tensor.storage_offset(), *tensor.shape, *tensor.stride())
            yield tensor, (tensor.untyped_storage()._cdata, *part)
