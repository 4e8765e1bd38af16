"""The loss scale over time: every change of it, every skipped step, and the gradient behind it.

A scale lies on the device, and reading it would make the program wait. So copies are put aside there, and read
when a step is recorded, or at the end; on a CPU, where nothing waits, at once.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from ampcheck.observe.modes import unseen
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.script.state.spoilt_numbers import SpoiltNumbers
from ampcheck.observe.unusual import plain
from ampcheck.values.loop import Cause, ScaleEvent

#: Skipped steps in a row after which the next one is looked into, and how often that is done.
IN_A_ROW, MOST_LOOKS = 2, 4
#: The same for skipped steps with others between them.
OF_ALL, MOST_OF_ALL = 4, 12
#: Steps that a scaler skips at first after which the first ones that were recorded say little.
MANY_AT_FIRST = 3
#: Events put aside on a device before they are read after all.
_MOST = 256
#: Skipped steps in which a parameter has gradients, and in no other, before that is said.
_SEVERAL = 4


@dataclass(slots=True)
class _Update:
    """What is known of one `scaler.update`, part of it still on the device."""

    step: int
    scaler: str
    values: torch.Tensor  #: scale before, scale after, sum of found infinities
    suspects: list["_Suspect"] = field(default_factory=list)


@dataclass(slots=True)
class _Suspect:
    """The gradients of one optimizer whose step was skipped."""

    step: int
    optimizer: str
    parameters: list[tuple[str, str]]
    bad: torch.Tensor  #: whether each gradient holds an inf or NaN


@dataclass(slots=True)
class Attempt:
    """One call of scaler.step: which optimizer it is about, and whether that was reached."""

    label: str
    reached: bool = False


class Skips:
    """Skipped steps, and which step they make worth looking into.

    It is the one after the first that trains, if many did not: what was looked into before says little of it. And that
    after a skipped step of a scaler that had found its scale: growing too far costs it one, not two in a row. Where
    others come in between, it is the one as far away as the last skip was: every tenth batch may be the cause.
    """

    def __init__(self) -> None:
        self._found = False  #: a step was let through
        self._in_a_row = self._of_all = self._looks = 0
        self._first: dict[
            str, int
        ] = {}  #: by optimizer that has not stepped yet, the steps that were skipped
        self._stepped: set[str] = set()
        self._last = 0  #: step that was skipped

    def _trains_at_last(self, optimizer: str, *, skips: bool) -> bool:
        """Tell whether this is the first step of an optimizer after many, and no other one is still waiting."""
        if optimizer in self._stepped:
            return False
        if skips:
            self._first[optimizer] = self._first.get(optimizer, 0) + 1
            return False
        self._stepped.add(optimizer)
        return self._first.pop(optimizer, 0) >= MANY_AT_FIRST and not self._first

    def wants_next(self, optimizer: str, step: int, *, skips: bool) -> int:
        """Take note of a step of an optimizer; return the next one to look into, or 0."""
        if self._trains_at_last(optimizer, skips=skips):
            self._found = True
            return step + 1
        self._found = self._found or not skips
        self._in_a_row = self._in_a_row + 1 if skips else 0
        self._of_all += skips and self._found
        wanted = self._found and self._in_a_row == IN_A_ROW and self._looks < MOST_LOOKS
        alone = self._in_a_row == 1 and self._of_all > OF_ALL
        far = step - self._last if alone and self._looks < MOST_OF_ALL else int(wanted)
        self._last = step if skips else self._last
        self._looks += far > 0
        return step + far if far else 0


class ScaleWatch:
    """Follows the scalers of a script."""

    def __init__(self, named: Named) -> None:
        """Begin; `named` says what a parameter is called."""
        self._named = named
        self._waiting: list[_Update] = []
        self._suspects: list[_Suspect] = []
        self.first: dict[str, float] = {}
        self.events: list[ScaleEvent] = []
        self.spoilt = SpoiltNumbers()
        self._in_skips: Counter[str] = (
            Counter()
        )  #: by parameter, in how many of the skipped steps it had a gradient

    @unseen
    def skipped(self, step: int, optimizer: str, parameters: Iterable[torch.Tensor]) -> None:
        """Put aside which gradients were not finite when an optimizer was not allowed to step."""
        self.spoilt.skipped(step)
        held = [(p, grad) for p in parameters if (grad := plain(p.grad)) is not None]
        if held:
            with torch.no_grad():
                bad = torch.stack([_not_finite(grad) for _, grad in held])
            names = [self._named(p) for p, _ in held]
            self._in_skips.update(name.lstrip(".") for _, name in names)
            self._suspects.append(_Suspect(step, optimizer, names, bad))

    @unseen
    def updated(
        self, step: int, scaler: str, before: torch.Tensor, after: torch.Tensor, found: list[torch.Tensor]
    ) -> None:
        """Put aside what an update did to the scale."""
        self.spoilt.step_ends(step)
        with torch.no_grad():
            values = torch.cat([part.to(after.device).reshape(1) for part in (before, after, *found)])
        self._waiting.append(_Update(step, scaler, values, self._suspects))
        self._suspects = []
        if values.is_cpu or len(self._waiting) >= _MOST:
            self.settle()

    @unseen
    def settle(self) -> None:
        """Read what was put aside."""
        waiting, self._waiting = self._waiting, []
        for update in waiting:
            before, after, *found = update.values.tolist()
            self.first.setdefault(update.scaler, before)
            skips = [(one.step, _cause(one)) for one in update.suspects] if any(found) else []
            # Of several optimizers that were not allowed to step the scale falls once, after the last.
            for step, cause in skips[:-1]:
                self.events.append(ScaleEvent(step, update.scaler, before, before, skipped=True, cause=cause))
            if any(found) or before != after:
                step, cause = skips[-1] if skips else (update.step, None)
                self.events.append(
                    ScaleEvent(step, update.scaler, before, after, skipped=any(found), cause=cause)
                )

    def only_in_skips(self, stepped: Collection[str]) -> tuple[str, ...]:
        """Return the parameters that had gradients in several skipped steps, and were not among those `stepped`."""
        often = (name for name, times in self._in_skips.items() if times >= _SEVERAL)
        return tuple(name for name in often if name not in stepped) if stepped else ()

    @property
    def current(self) -> float | None:
        """Return the last scale known."""
        return self.events[-1].after if self.events else next(iter(self.first.values()), None)


@unseen
def about_to_update(scaler: Any) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
    """Return the scale before an update and the infinities it received; None for a scaler that has no scale."""
    if not scaler.is_enabled() or scaler._scale is None:
        return None
    states = scaler._per_optimizer_states.values()
    found = [value for state in states for value in state["found_inf_per_device"].values()]
    return scaler._scale.detach().clone(), found


@unseen
def overflowed(scaler: Any, optimizer: Any) -> bool:
    """Tell whether a gradient is known to be infinite: on a CPU, where reading costs nothing."""
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    return any(value.is_cpu and float(value) for value in found)


def found_overflow(scaler: Any) -> bool:
    """Tell whether a scaler has found an infinity in the gradients of any optimizer, and will skip its step."""
    states = getattr(scaler, "_per_optimizer_states", {}).values()
    return any(float(value) for state in states for value in state["found_inf_per_device"].values())


def is_ready(scaler: Any, optimizer: Any) -> bool:
    """Tell whether a scaler has not divided an optimizer's gradients yet."""
    states = getattr(scaler, "_per_optimizer_states", {})
    return states.get(id(optimizer), {}).get("stage", OptState.READY) is OptState.READY


def _not_finite(grad: torch.Tensor) -> torch.Tensor:
    values = grad.coalesce().values() if grad.is_sparse else grad
    return (~values.isfinite()).any()


def _cause(suspect: _Suspect) -> Cause | None:
    """Return the parameter whose gradient the backward reaches first, among those that are not finite."""
    bad = [name for name, flag in zip(suspect.parameters, suspect.bad.tolist(), strict=True) if flag]
    if not bad:
        return None
    layer, parameter = bad[-1]
    return Cause(parameter, layer, suspect.optimizer, others=len(bad) - 1)
