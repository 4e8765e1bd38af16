"""The gradients of a recorded step on their way from the backward to an optimizer, beside FP32's treated alike.

A recording ends where gradients are first changed: by a clip, a division, a copy to FP32 weights. What a script does
with them from there is done to FP32's gradients too, operation by operation. An optimizer that is given something else
then is given what low precision, or the order of these things, has made of it.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

import torch

from ampcheck.observe.execution import Args, Kwargs, run_op
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.reference.checks import READ
from ampcheck.observe.reference.effects import Effects, written
from ampcheck.observe.reference.shadow import Follow, Shadow
from ampcheck.observe.script.gradient_rows import Compare, in_parts
from ampcheck.observe.script.state.naming import names_of
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable, tensors_of
from ampcheck.observe.unusual import plain
from ampcheck.values.outcome import HARM_ERROR


class _Followed(Shadow):
    """FP32's gradients and what is computed of them; everything else runs once."""

    def __init__(self, execute: Callable[..., Any] = run_op) -> None:
        super().__init__(execute)
        self.places: dict[int, tuple[str, int]] = {}  #: by storage, the line that spoilt it, or wrote it
        self._wrong: set[int] = set()  #: storages whose line is the one that made them wrong
        self.spoilt = ("", 0)  #: the line that has made a number infinite that the script reads
        #: By storage of what was others than FP32's before, and of what is made of that, the line that made that.
        self._older: dict[int, tuple[str, int]] = {}

    def differs(self, tensor: torch.Tensor, line: tuple[str, int]) -> None:
        """Take note of numbers that are others than FP32's already, and of the line that has made them."""
        self._older[_storage(tensor)] = line

    def run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run an operation, and its reference; take note of an infinite number that the script reads."""
        if func is READ and (place := _storage(args[0])) in self._wrong:
            self.spoilt = self.places[place]
        return super().run(func, args, kwargs)

    def _differs(self, args: Any, kwargs: Any) -> bool:
        values = (*args, *kwargs.values()) if kwargs else args
        return any(self._beside(tensor) is not None for tensor in tensors_of(values))

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        if not self._differs(args, kwargs):
            return None
        follow, targets = super()._follow(rule, func, args, kwargs), written(rule, args, kwargs)
        read = [*map(_storage, tensors_of((args, kwargs)))]
        older = next((self._older[place] for place in read if place in self._older), None)
        begun = next((self.places[place] for place in read if place in self._wrong), older)

        def note(out: Any) -> None:
            if follow is not None:
                follow(out)
            for tensor in tensors_of((targets, out)):
                place = _storage(tensor)
                if place and place not in self._wrong:
                    wide = self.of(tensor)
                    wrong = wide is not None and _is_turned(in_parts(tensor.detach()), in_parts(wide))
                    self.places[place] = (begun if wrong else older) or running_line()
                    if wrong:
                        self._wrong.add(place)
                if place and older is not None:
                    self._older[place] = older

        return note


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if readable(tensor) else 0


def _is_turned(numbers: torch.Tensor, wide: torch.Tensor) -> bool:
    """Tell whether numbers point elsewhere than FP32's do, whatever both are multiplied by, or are not finite."""
    low, high = numbers.double().flatten(), wide.double().flatten()
    if low.numel() == 1:
        return bool(high.isfinite() & ~low.isfinite())
    along, size = low @ high, (low @ low) * (high @ high)
    return bool(high.any() & ~(along.square() >= (1.0 - HARM_ERROR**2) * size) | (high.any() & ~low.any()))


class Delivery:
    """Follows the gradients of one recorded step."""

    def __init__(
        self,
        compare: Compare,
        runs: Sequence[Shadow] = (),
        scale: Callable[[], float] = lambda: 1.0,
        *,
        kept: bool = False,
    ) -> None:
        """Begin with the runs beside the step, FP32's first; there are none where it is not compared.

        The `scale` is what the script's gradients are multiplied by, or were; where it is `kept`, FP32's are as well.
        """
        self._compare, self.runs, self._scale, self._kept = compare, runs, scale, kept
        self.mode: BesideMode | None = None
        self._begun = self._paused = False
        #: The script limits gradients in a way that is judged elsewhere, or knows the scale: all may be shorter.
        self.shortened = False
        self.rows: dict[str, Sequence[float]] = {}  #: comparisons with FP32's, by parameter
        self.second: dict[str, Sequence[float]] = {}  #: those of the second run
        self.places: dict[str, tuple[str, int]] = {}  #: by parameter, the line that last changed its gradient
        self._others: dict[tuple[str, int], weakref.ref[torch.Tensor]] = {}  #: by line, what it has made
        self.kept: dict[tuple[str, int], str] = {}  #: the same that gradients were computed with, by its name
        self.compared: set[int] = set()  #: identities of the parameters that were compared
        #: All gradients are zero after the script has read a number of them that is infinite: the line that made it so.
        self.zeroed_at = ("", 0)
        self._read_before = ("", 0)  #: the line that has read such a number before all this began

    def keep(
        self,
        parameters: Sequence[torch.Tensor],
        others: Sequence[tuple[torch.Tensor, tuple[str, int]]] = (),
        read_before: tuple[str, int] = ("", 0),
    ) -> None:
        """Keep what FP32 has as the gradients of some parameters, in order to follow that from here on.

        And what it has of `others` that gradients may be computed with, each with the line that has rounded it. An
        infinite number may have been read already.
        """
        self._read_before = read_before
        followed: list[_Followed] = []
        self._others = {line: weakref.ref(tensor) for tensor, line in others}
        for run in self.runs:
            own = _Followed(followed[-1].run if followed else run_op)
            own.gave_way = lambda _: self.end()
            for grad in (plain(gradient_of(parameter)) for parameter in parameters):
                if grad is not None and (wide := run.of(grad)) is not None:
                    own.keep(grad, wide.clone())
            for tensor, line in others:
                if (wide := run.of(tensor)) is not None:
                    own.keep(tensor, wide.clone())
                    if line[1]:
                        own.differs(tensor, line)
            followed.append(own)
        self.runs, self.mode = followed, BesideMode(followed[-1])

    def begins(self) -> None:
        """Begin to follow, once."""
        if self.mode is not None and not self._begun:
            self._begun = True
            self.mode.__enter__()

    def pause(self) -> None:
        """See nothing of what a scaler divides: FP32's gradients never were multiplied."""
        self._paused = self._paused or (self.mode is not None and self.mode.pause())

    def resume(self) -> None:
        """Go on."""
        if self._paused and self.mode is not None:
            self.mode.resume()
        self._paused = False

    def arrives(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Compare what an optimizer is about to use."""
        pairs = []
        for name, parameter in parameters:
            grad = plain(gradient_of(parameter))
            wide = None if grad is None else self.runs[0].of(grad)
            if grad is not None and wide is not None and grad.layout is torch.strided:
                pairs.append((name, parameter, in_parts(grad.detach()), in_parts(wide)))
        if pairs and not any(bool(grad.any()) for _, _, grad, _ in pairs):
            spoilt = getattr(self.runs[0], "spoilt", ("", 0))
            self.zeroed_at = spoilt if spoilt[1] else self._read_before
        length = _length([one[2:] for one in pairs]) if self.shortened else 1.0
        for name, parameter, grad, wide in pairs:
            scale, again = self._scale() or 1.0, id(parameter) in self.compared
            others = (1.0 / scale,) if self._kept else (scale, 1.0 / scale) if again else (scale,)
            by = length * _factor(grad.double() / length, wide.double(), others)
            self.rows[name] = self._compare(wide, grad.to(wide.dtype) / by, 0).tolist()
            self.compared.add(id(parameter))
            self.places[name] = getattr(self.runs[0], "places", {}).get(
                grad.untyped_storage()._cdata, ("", 0)
            )
            self._name(self.places[name])
            if len(self.runs) > 1 and (own := self.runs[-1].of(grad)) is not None:
                self.second[name] = self._compare(wide, in_parts(own), 0).tolist()

    def _name(self, line: tuple[str, int]) -> None:
        """Take note of what the script calls what a line makes, where gradients were computed with that."""
        known = self._others.get(line)
        if line not in self.kept and known is not None and (tensor := known()) is not None:
            self.kept[line] = names_of([tensor])[id(tensor)]

    def end(self) -> None:
        """Stop following: the next step begins."""
        mode, self.mode = self.mode, None
        if mode is not None:
            self.runs = ()
            if self._begun:
                mode.__exit__()


def _length(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return how many times as long as FP32's some gradients are, all together."""
    along = float(sum((grad.double() * wide.double()).sum() for grad, wide in pairs))
    whole = float(sum(wide.double().square().sum() for _, wide in pairs))
    return along / whole if 0.0 < along < inf and 0.0 < whole < inf else 1.0


def _factor(grad: torch.Tensor, wide: torch.Tensor, others: tuple[float, ...]) -> float:
    """Return by what a gradient is multiplied: nothing, or one of the other factors that are possible.

    Whether each is divided by the loss scale that was multiplied by it, and once, is judged elsewhere.
    """
    errors = {by: float((grad / by - wide).square().sum()) for by in (1.0, *others)}
    return min(errors, key=lambda by: errors[by] if errors[by] == errors[by] else inf)
