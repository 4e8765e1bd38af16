"""Loss scales that no GradScaler of torch's applies: known by what they do to a loss and to its gradients.

A script may multiply the loss by hand, or let a framework do it, and divide the gradients before the step. The
product is read from the loss's graph; the division shows where gradients are smaller at the step than they were
after the backward. Where only one of the two is seen, the scaling is unknown, and that is said. A limit that gradients
are clipped to may be multiplied as they are.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import frexp, isfinite
from statistics import median
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE, number_of
from ampcheck.observe.statistics.memory import version_of
from ampcheck.observe.unusual import plain
from ampcheck.values.formats import FP16
from ampcheck.values.loop import IN_SCALE, NOT_FINITE, PERHAPS
from ampcheck.values.trace import Phase, Trace
from ampcheck.values.wording import scale_words

#: How far a measured division may be off, relatively, and still be the one by the scale.
CLOSE = 1e-3
#: Gradients that are measured in order to see a division.
_PROBES = 4
#: Limits that people choose for gradients that are not scaled.
_USUAL = (1e-3, 1e3)
#: The smallest part of the scale that a limit may be and still, perhaps, be multiplied by it.
_LEAST = 1.0 / 64.0

#: Gradients that a script lets go of itself where it takes no step.
CLEARED = (
    "backwards whose gradients were gone before a step was taken: whether the script uses them was not seen"
)
#: What is not audited: whether the line multiplies it by the scale as well is not known.
ADDED = "what is added to gradients that are still multiplied by the loss scale"

Probe = tuple[torch.Tensor, torch.Tensor]
#: Operations that multiply a loss by its scale.
_PRODUCTS = frozenset({"mul", "div"})


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is known of the loss scale of a recorded step that no GradScaler scaled."""

    scale: float = 0.0  #: the scale that was applied by hand, and divided away again; 0 for none
    words: str = ""  #: why the scaling is not known; '' where it is

    @property
    def known(self) -> bool:
        """Tell whether a scale was applied and is known."""
        return bool(self.scale)


def worst(found: Iterable[Scaling]) -> Scaling:
    """Return what is not known of some steps' scales; where all are known, the largest."""
    return max(found, key=lambda one: (one.words, one.scale), default=Scaling())


def probes(parameters: Iterable[torch.Tensor], most: int = _PROBES) -> list[Probe]:
    """Return some parameters with the largest element of their gradients, read from no device yet."""
    return sizes(((parameter, gradient_of(parameter)) for parameter in parameters), most)


def sizes(pairs: Iterable[tuple[torch.Tensor, torch.Tensor | None]], most: int = _PROBES) -> list[Probe]:
    """Return some parameters with the largest element of what is their gradient, read from no device yet."""
    found: list[Probe] = []
    for parameter, gradient in pairs:
        grad = plain(gradient)
        if grad is not None and grad.layout is torch.strided and grad.is_floating_point() and grad.numel():
            found.append((parameter, grad.detach().abs().amax().double()))
        if len(found) == most:
            break
    return found


def all_sizes(parameters: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, float]]:
    """Return all parameters that have a gradient with the largest element of it."""
    return [(parameter, float(largest)) for parameter, largest in probes(parameters, most=sys.maxsize)]


def scaling_of(by: float, before: Sequence[Probe], stepped: Iterable[torch.Tensor]) -> Scaling:
    """Return what is known of a step's scale: the loss was multiplied `by` a constant, and these were stepped."""
    updated = list(stepped)
    own = {id(parameter) for parameter in updated}
    held = [one for one in before if gradient_of(one[0]) is not None]
    copied = bool(own) and not any(id(parameter) in own for parameter, _ in held)
    pairs = _copies(held, updated) if copied else held
    ratios = _ratios(pairs)
    divided = median(ratios) if ratios else 1.0
    if by >= SMALLEST_SCALE:
        clipped = len(ratios) > 1 and min(ratios) > by and max(ratios) < (1.0 + CLOSE) * min(ratios)
        if (overflowed(before) and not copied) or abs(divided / by - 1.0) < CLOSE or clipped:
            return Scaling(by)
        if not own or copied or divided >= SMALLEST_SCALE:
            return no_division(by)
    elif divided >= SMALLEST_SCALE and abs(frexp(divided)[0] - 0.5) < CLOSE:
        scale = scale_words(round(divided))
        return Scaling(
            0.0, f"gradients are divided by {scale} before the step; what multiplied them was not seen"
        )
    elif not pairs and any(parameter.dtype == torch.float16 for parameter, _ in held):
        return Scaling(
            0.0,
            "the optimizer steps copies of float16 weights; what their gradients are divided by was not seen",
        )
    return Scaling()


def no_division(by: float) -> Scaling:
    """Return what is not known where a loss was multiplied, and nothing was seen to divide its gradients."""
    return Scaling(
        0.0, f"the loss is multiplied by {scale_words(by)}; what divides its gradients was not seen"
    )


def _copies(held: Sequence[Probe], updated: Sequence[torch.Tensor]) -> list[Probe]:
    """Return the probes with the copies that are stepped in place of the parameters, as far as they are found."""
    found = []
    for parameter, amax in held:
        alike = (one for one in updated if one.shape == parameter.shape and one.device == parameter.device)
        copies = (one for one in alike if _holds(one, parameter))
        found += [(copy, amax) for copy in (next(copies, None),) if copy is not None]
    return found


def _holds(copy: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Tell whether a copy holds a parameter's numbers; of one that is spread over ranks, this rank's part is read."""
    ours, theirs = plain(copy), plain(parameter)
    if ours is None or theirs is None:
        return False
    return torch.equal(ours.detach().to(theirs.dtype), theirs.detach())


def overflowed(held: Sequence[Probe]) -> bool:
    """Tell whether no gradient of some is finite: no division shows in them."""
    return bool(held) and not any(isfinite(amax) for _, amax in held)


def not_finite(parameters: Iterable[torch.Tensor]) -> bool:
    """Tell whether a gradient holds an inf or a NaN."""
    return not all(isfinite(amax) for _, amax in all_sizes(parameters))


def before_step(
    scaled: tuple[float, Sequence[Probe]], by_hand: float, stepped: Sequence[torch.Tensor]
) -> tuple[bool, str]:
    """Tell whether a script has divided gradients that a scaler has multiplied, and what to call their step.

    That is a loss's scale with its gradients after the backward, and a scale that was applied by hand. A division shows
    where gradients have become about so many times smaller, whatever was added to them or averaged.
    """
    scale, before = scaled
    own = {id(parameter) for parameter in stepped}
    divided = SMALLEST_SCALE <= scale <= 2.0 * divided_by([one for one in before if id(one[0]) in own])
    bad = by_hand >= SMALLEST_SCALE and not_finite(stepped)
    return divided, NOT_FINITE if bad else ""


def divided_by(before: Sequence[Probe]) -> float:
    """Return by how much gradients have become smaller."""
    ratios = _ratios(before)
    return median(ratios) if ratios else 1.0


def _ratios(before: Sequence[Probe]) -> list[float]:
    held = [(parameter, amax) for parameter, amax in before if gradient_of(parameter) is not None]
    after = probes(parameter for parameter, _ in held)
    pairs = [(float(amax), float(now)) for (_, amax), (_, now) in zip(held, after, strict=False)]
    return [was / now for was, now in pairs if was and now and isfinite(was) and isfinite(now)]


class Multiplied:
    """The losses of a recorded step that a script multiplies, and some gradients of each after the backward."""

    def __init__(self) -> None:
        self.by = 1.0  #: the largest constant
        self._now = 1.0
        self._found: dict[float, dict[int, Probe]] = {}
        self._seen: dict[int, tuple[int, int]] = {}  #: by parameter, the gradient that it had and its version
        self.added: set[str] = set()  #: lines that add something else to gradients that are multiplied still
        self.minded = False  #: gradients are limited to what is multiplied by the constant as well
        self._divisors: set[float] = set()
        self._divided: set[int] = set()  #: parameters whose gradients were divided by the constant

    def begins(self, by: float) -> None:
        """Take note of a backward of a loss multiplied `by` a constant."""
        self._now, self.by = by, max(self.by, by)

    def ends(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of what a backward has left."""
        fresh = [one for one in parameters if self._is_fresh(one)]
        self.gave((one, gradient_of(one)) for one in fresh)

    def is_only_product(self, trace: Trace, loss: float, reference: float) -> bool:
        """Tell whether a loss is infinite as a product with its scale, and nothing else of the forward is.

        The loss by itself has to be no larger than float16's largest number in FP32.
        """
        bad = {
            one: stats for one, stats in trace.sites.items() if one.phase is Phase.FORWARD and stats.nonfinite
        }
        numbers = all(one.op in _PRODUCTS and stats.numel == stats.nonfinite for one, stats in bad.items())
        fits = abs(reference) <= self.by * FP16.max
        return self.by >= SMALLEST_SCALE and not isfinite(loss) and bool(bad) and numbers and fits

    def gave(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        """Take note of gradients, of which some are kept."""
        found = {id(parameter): (parameter, amax) for parameter, amax in sizes(pairs)}
        for by, others in self._found.items():
            self._found[by] = {key: probe for key, probe in others.items() if key not in found}
        self._found.setdefault(self._now, {}).update(found)

    def _is_fresh(self, parameter: torch.Tensor) -> bool:
        if (grad := gradient_of(parameter)) is None:
            return False
        last = self._seen.get(id(parameter))
        self._seen[id(parameter)] = now = id(grad), version_of(grad)
        return now != last

    def changes(self, name: str, args: tuple[Any, ...], owners: Iterable[torch.Tensor]) -> str:
        """Take note of an operation on gradients, which may divide them in place; return the scale and the divisor.

        Each divisor is returned once a step, '' the other times.
        """
        number = number_of(args[1]) if len(args) > 1 and name.endswith("_") else 0.0
        if not number or self.by < SMALLEST_SCALE:
            return ""
        by = number if "div" in name else 1.0 / number
        own = next((one for one in self._found if abs(by / one - 1.0) < CLOSE), 0.0)
        if own:
            self._divided.update(map(id, owners))
        if by < SMALLEST_SCALE or by in self._divisors:
            return ""
        self._divisors.add(by)
        return f"{own or self._now!r} {own or by!r}"

    def missed(self) -> dict[str, int]:
        """Return what is not audited."""
        return {f"{ADDED} at {place}": 1 for place in self.added}

    def holds(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Tell whether gradients are multiplied still, as far as was seen."""
        return self.by >= SMALLEST_SCALE and self._divided.isdisjoint(map(id, parameters))

    def shrunk(self, stepped: Iterable[torch.Tensor]) -> bool:
        """Tell whether gradients were limited to a length that was not meant for multiplied ones, and then divided."""
        own = self._divided.intersection(map(id, stepped))
        pairs = [(by, one) for by, found in self._found.items() for key, one in found.items() if key in own]
        ratios = [ratio / by**1.5 for by, one in pairs for ratio in _ratios([one])]
        return bool(ratios) and median(ratios) > 1.0

    def scaling(self, stepped: Iterable[torch.Tensor]) -> Scaling:
        """Return what is known of the scale when an optimizer steps; of several scales, the largest."""
        updated = list(stepped)
        own = set(map(id, updated))
        groups = {by: list(found.values()) for by, found in self._found.items() if found}
        keys = {key for found in self._found.values() for key in found}
        if self.by >= SMALLEST_SCALE and (self.minded or (keys and keys <= self._divided)):
            return Scaling(self.by)
        every = [one for held in groups.values() for one in held]
        several = len(groups) > 1
        if not several or overflowed(every):
            return scaling_of(self.by, every, updated)
        mine = {by: [] if own.isdisjoint(self._found[by]) else updated for by in groups}
        return worst(scaling_of(by, before, mine[by]) for by, before in groups.items())

    def of(self, parameters: Iterable[torch.Tensor]) -> tuple[float, list[Probe]]:
        """Return what the loss was multiplied by whose gradients these are, and some of them."""
        own = {id(parameter) for parameter in parameters}
        for by, found in sorted(self._found.items(), reverse=True):
            if held := [probe for key, probe in found.items() if key in own]:
                return by, held
        return self.by, [probe for found in self._found.values() for probe in found.values()]


@modes.unseen
def limit_of(args: tuple[Any, ...], kwargs: dict[str, Any], *, may_wait: bool) -> float:
    """Return the limit that a function of torch's is called with, 0 for none, or one that a GPU would be waited for."""
    names = ("max_norm", "clip_value")
    given = next((kwargs[name] for name in names if name in kwargs), args[0] if args else None)
    if isinstance(given, torch.Tensor):
        if given.numel() != 1 or not (given.is_cpu or may_wait):
            return 0.0
        return float(given.detach())
    return float(given) if isinstance(given, (int, float)) else 0.0


def unit_of(limit: float, scale: float, *, read: bool, at_hand: bool) -> str:
    """Return whether a limit is multiplied by the loss scale.

    The script has `read` the scale at some time, or has it `at_hand` where it clips. A limit that nobody would choose
    for gradients as they are, and that is a usual one times the scale, is multiplied by it if the scale was ever read.
    """
    least, most = _USUAL
    if not limit or scale < SMALLEST_SCALE:
        return ""
    if limit > most and limit >= least * scale:
        return IN_SCALE if read or at_hand else PERHAPS
    return PERHAPS if at_hand and limit >= _LEAST * scale else ""
