"""The gradients of a recorded step beside FP32's: as the backward leaves them, and as they are used."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.model.held import apart
from ampcheck.observe.reference.effects import effects, written
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.script.second_run import SecondRun
from ampcheck.observe.source import in_engine, running_line
from ampcheck.observe.statistics.memory import readable, tensors_of, version_of
from ampcheck.observe.unusual import plain
from ampcheck.values.wording import some

#: From a gradient in FP32 and the script's, multiplied by a power of two, to what is to be known of their difference.
Compare = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
#: What is not audited, behind the names.
ZEROED = "are zero, and are not in FP32"
#: Where the script computes with the scale within a step, so that FP32's gradients hold it, too.
SEVERAL_SCALES = "which of several loss scales the divided gradients were multiplied by"
#: The part of the rows of a weight from which on that is said, and of its whole gradient, what a row has that counts.
_MANY_ROWS, _FAR_FROM_ZERO = 0.25, 1e-4
#: What losses are multiplied by for other reasons: such a number in a backward need not be the loss scale.
_FACTORS = frozenset({0.0, 0.25, 0.5, 1.0, 2.0, 4.0})
#: What of a scale is large: smaller numbers are factors of another kind.
_LARGE_PART = 1e-3
_current_node = torch._C._current_autograd_node
#: Operations that divide by the loss scale, or multiply by its inverse; those that add something to gradients.
_SCALES, _ADDS = frozenset({"div", "mul"}), frozenset({"add", "sub", "_foreach_add", "_foreach_sub"})
#: Of the gradient, what is added from which on it counts, and what is too much to be added on purpose.
_SOME, _TOO_MUCH = 0.01, 16.0


class GradientRows:
    """What is known of each parameter's gradient, by the parameter's full name."""

    def __init__(
        self,
        compare: Compare,
        runs: tuple[Shadow, SecondRun | None],
        scale: Callable[[], float],
        *,
        kept: bool,
    ) -> None:
        """Begin with nothing; FP32 runs beside the script, and perhaps a second run.

        The script's gradients are multiplied by a `scale`; where it is `kept`, FP32's are as well.
        """
        self._compare, self._scale, self._kept = compare, scale, kept
        self._shadow, self._second = runs
        self.divided: set[int] = set()  #: parameters whose gradients a scaler divides
        self._unknown = False  #: which of several loss scales has multiplied them
        self.seen: set[int] = set()  #: parameters that have a gradient
        self.both: set[int] = set()  #: those whose gradient FP32 has as well
        self._rows: dict[str, torch.Tensor] = {}
        #: Of each, the part of its rows that are zero and not in FP32, and FP32's share of the whole gradient in them.
        self._zeroed: dict[str, torch.Tensor] = {}
        self._waiting = False  #: nothing has read the gradients that a backward has left
        self._places = frozenset[int]()  #: the storages of these, until something changes one
        self._untouched: dict[str, torch.Tensor] = {}
        self._left: list[
            tuple[torch.Tensor, torch.Tensor, int]
        ] = []  #: parameters with what the backward has left
        #: Where the script has first changed them by itself, or else divided or multiplied them, or else read them.
        self.touched_at = ("", 0)
        self._scaled = False  #: they were divided or multiplied: a check reads them before
        #: Where something without the loss scale is added to gradients that hold it, and how large it is beside FP32's.
        self.added: tuple[str, int, float] | None = None

    def add(self, name: str, parameter: int, grad: torch.Tensor) -> None:
        """Compare a gradient, as it is used."""
        if grad.layout is not torch.strided:
            return
        wide, self._rows[name] = self._row(parameter, grad)
        self.seen.add(parameter)
        if self._shadow.of(grad) is not None:
            self.both.add(parameter)
            if grad.dim() > 1 and grad.numel():
                self._zeroed[name] = _zeroed(grad.detach(), wide)
        if self._second is not None and (own := self._second.of(grad)) is not None:
            by = self._scale() if self._kept else 1.0
            self._second.rows[name] = self._compare(wide, in_parts(own) / by, 0)

    def wait(self, parameters: Iterable[torch.Tensor]) -> None:
        """Wait for the first operation on gradients: a backward has just left them."""
        self._untouched, self.touched_at, self._scaled = {}, ("", 0), False
        held = ((one, gradient_of(one)) for one in parameters)
        self._left = [
            (one, grad, version_of(grad)) for one, grad in held if grad is not None and readable(grad)
        ]
        self._waiting = True
        self._places = frozenset(grad.untyped_storage()._cdata for _, grad, _ in self._left)

    def divides(self, parameters: list[torch.Tensor], others: Collection[float]) -> float:
        """Take note of gradients that a scaler divides, where others have scales as well.

        Return how many times as large as FP32's they are; 0 where that is not known, or there are no others.
        """
        self.divided |= set(map(id, parameters))
        self._unknown = self._unknown or (self._kept and bool(others))
        return 0.0 if self._kept or not others else times_as_large(parameters, self._shadow.of)

    def gone(self) -> bool:
        """Tell whether no parameter has the gradient any more that a backward left."""
        return not any(gradient_of(one) is grad for one, grad, _ in self._left)

    def touches(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether an operation with these arguments is the first; note the line of the first that changes some."""
        if _current_node() is not None:
            return False
        if self._left and effects(func).name.rstrip("_") in _ADDS and not self._kept:
            with suppress(Exception):  # of our own: then nothing is known of it
                self._adds(args, kwargs.get("alpha", 1.0))
        if not self._places:
            return False
        given = {tensor.untyped_storage()._cdata for tensor in tensors_of(args) if readable(tensor)}
        if self._places.isdisjoint(given):
            return False
        first, self._waiting = self._waiting, False
        changes = effects(func).name == "copy_" or any(
            readable(tensor) and tensor.untyped_storage()._cdata in self._places
            for tensor in tensors_of(written(effects(func), args, {}))
        )
        scales = not self._scaled and effects(func).name in _SCALES
        self._scaled = self._scaled or scales
        if first or changes or scales:
            self.touched_at = running_line()
        if changes:
            self._places = frozenset()
        return first

    @modes.unseen
    def _adds(self, args: tuple[Any, ...], alpha: Any) -> None:
        """Take note of what is added, if it counts and does not hold the loss scale."""
        scale = self._scale()
        grads, others = (one if isinstance(one, list | tuple) else [one] for one in args[:2])
        left = (grad for parameter, grad, _ in self._left if id(parameter) not in self.divided)
        held = {grad.untyped_storage()._cdata for grad in left}
        for grad, other in zip(grads, others, strict=False):
            if not all(isinstance(one, torch.Tensor) and readable(one) for one in (grad, other)):
                continue
            wide = self._shadow.of(grad) if grad.untyped_storage()._cdata in held else None
            if wide is None or not other.dim() or apart(wide * scale, grad) >= apart(wide, grad):
                continue
            own = self._shadow.of(other)
            if own is not None and apart(own * scale, other) < apart(own, other):
                continue
            share = abs(float(alpha)) * float(other.detach().norm() / wide.norm())
            if _SOME <= share <= min(_TOO_MUCH, _SOME * scale):
                self.added = self.added or (*running_line(), share)
            elif share > _TOO_MUCH and not other.requires_grad:  # it is multiplied by the scale, by hand
                for run in filter(None, (self._shadow, self._second)):
                    run.keep(other, other.detach() / scale)

    def keep(self, parameters: Iterable[tuple[str, str, torch.Tensor]]) -> None:
        """Compare gradients as the backward has left them; a scaler may have divided some since."""
        for module, name, parameter in parameters:
            grad, full = plain(gradient_of(parameter)), f"{module}.{name}".lstrip(".")
            if id(parameter) in self.divided and full in self._rows:
                self._untouched[full] = self._rows[full]
            elif grad is not None and grad.layout is torch.strided:
                _, self._untouched[full] = self._row(id(parameter), grad)

    def _row(self, parameter: int, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what FP32 has as the gradient of a parameter, and how the script's compares with it."""
        reference, scale = self._shadow.of(grad), self._scale()
        reference = None if reference is None else in_parts(reference)
        wide = in_parts(grad.detach().to(torch.promote_types(grad.dtype, torch.float32)))
        if grad.dtype in HALVES and parameter in self.divided:  # in place: what is too small is lost
            wide = (wide / scale).to(grad.dtype).to(wide.dtype) * scale
        before = wide / scale if reference is None else reference / (scale if self._kept else 1.0)
        multiplied = reference is None or self._kept or parameter in self.divided
        if reference is not None and not multiplied:  # its loss may have been multiplied by nothing
            multiplied = apart(reference, wide) >= apart(reference * scale, wide)
        wide = wide if multiplied else wide * scale
        # A scale that is no power of two is off by this.
        log2_scale = round(math.log2(scale)) if 0 < scale < math.inf else 0
        correction = 2.0**log2_scale / scale if scale else 1.0
        return before, self._compare(before, wide * correction, log2_scale)

    def dead_rows(self) -> dict[str, float]:
        """Return the weights many of whose rows get no gradient, with what FP32 has in them of the whole one."""
        return {name: share for name, (part, share) in _listed(self._zeroed).items() if part >= _MANY_ROWS}

    def missed(self) -> dict[str, int]:
        """Return what is not judged: rows that are zero hardly show in the gradient of a whole weight."""
        names = list(self.dead_rows())
        unknown = {SEVERAL_SCALES: 1} if self._unknown else {}
        return unknown | ({f"rows of the gradient of {some(names, 2)} {ZEROED}": 1} if names else {})

    def changes(self) -> tuple[tuple[str, int], dict[str, float], tuple[str, int, float] | None]:
        """Return where gradients are changed, which have rows that are zero, and what is added to them."""
        return self.touched_at, self.dead_rows(), self.added

    def overflowed(self) -> bool:
        """Tell whether a gradient is not finite that is finite in FP32."""
        return any(bool(row[2]) for row in self._rows.values())

    def fetch(self) -> tuple[dict[str, Sequence[float]], dict[str, Sequence[float]]]:
        """Return the comparisons of what is used, and of what the backward left where the script has changed that."""
        changed = any(
            gradient_of(one) is not grad or version_of(grad) != was for one, grad, was in self._left
        )
        self._left = []  # the script may let its gradients go
        return _listed(self._rows), _listed(self._untouched if changed else {})


def _zeroed(grad: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Return the part of a gradient's rows that are zero and far from it in FP32, and FP32's share of it in them."""
    sizes = wide.flatten(1).norm(dim=1).double()
    whole = sizes.norm()
    gone = (grad == 0).flatten(1).all(1) & (sizes > _FAR_FROM_ZERO * whole)
    return torch.stack([gone.double().mean(), (sizes * gone).norm() / whole])


def in_parts(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers, complex ones as their real and imaginary parts."""
    return torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers


def _listed(rows: dict[str, torch.Tensor]) -> dict[str, Sequence[float]]:
    lists = torch.stack(list(rows.values())).cpu().tolist() if rows else []
    return dict(zip(rows, lists, strict=True))


def times_as_large(
    parameters: Iterable[torch.Tensor], of: Callable[[torch.Tensor], torch.Tensor | None]
) -> float:
    """Return how many times as large as FP32's the gradients are; 0 where that is not known."""
    low = wide = 0.0
    for parameter in parameters:
        grad = plain(gradient_of(parameter))
        reference = None if grad is None else of(grad)
        if grad is not None and reference is not None:
            low += float(grad.double().square().sum())
            wide += float(reference.double().square().sum())
    return math.sqrt(low / wide) if 0 < low < math.inf and wide > 0 else 0.0


def takes_scale(args: Iterable[Any], scale: float, *, divides: bool, part: bool = False) -> bool:
    """Tell whether an operation is given the loss scale as a number, or what divides by it.

    Or a large `part` of it, or many times it, where the script has read it before this backward, and a function of its
    own computes with it.
    """
    by = (scale, 1.0 / scale) if divides and scale else (scale,)
    given = [one for one in args if type(one) is float]
    if part and not in_engine() and any(_LARGE_PART * scale <= one < math.inf for one in given):
        return scale not in _FACTORS
    return scale not in _FACTORS and any(one in by for one in given)
