"""The watcher of a training script: of its loop, and of the scalers and the CUDA graphs in it."""

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.script.comparing import Compared
from ampcheck.observe.script.data_sets import ROUNDED_DATA, cast_up
from ampcheck.observe.script.guard import guarded
from ampcheck.observe.script.hand_watcher import HandWatcher
from ampcheck.observe.script.optimizers import parameters_of
from ampcheck.observe.script.reading import SHORTENS
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.roots import trains
from ampcheck.observe.script.scaling.division import Division
from ampcheck.observe.script.scaling.losses import factor, is_scaled, mark_scaled
from ampcheck.observe.script.scaling.own_unscaling import OwnUnscaling, updates_at
from ampcheck.observe.script.scaling.scaled_by_hand import limit_of, unit_of
from ampcheck.observe.script.scaling.scales import Attempt, about_to_update, is_ready, overflowed
from ampcheck.observe.script.scaling.shared import SharedGradients
from ampcheck.values.loop import GIVEN, IN_SCALE, RETURNED, TWO_SCALES, Kind
from ampcheck.values.wording import some

if TYPE_CHECKING:
    from ampcheck.observe.source import Spot

#: What is not seen of a script that has steps replayed.
GRAPHS = "replays of CUDA graphs: what runs in one is not seen"


class Watcher(HandWatcher):
    """Follows a training loop through its events; the hooks of `hooks` call it."""

    _scaled_within = _scale_read = -1  #: backwards when gradients entered a loss, when the scale was read

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.unscaling, self.division, self.shared = OwnUnscaling(), Division(), SharedGradients()
        self._divides_at: Spot | None = None  #: the line that has divided gradients since the last backward
        self._scaled_at: Spot | None = None  #: the line that took such gradients, before any division

    @guarded
    def scale(self, scaler: Any, outputs: Any) -> None:
        """Take note of a loss about to be scaled."""
        label = self.journal.label(scaler, "scaler")
        self.journal.note(Kind.SCALE, label, dtype=str(getattr(outputs, "dtype", ""))[6:])
        if not self._scales:
            self.scales.spoilt.begins()
        if self.tape.now is not None and isinstance(outputs, torch.Tensor):
            self.tape.now.keep_loss(outputs)
            if isinstance(getattr(scaler, "_scale", None), torch.Tensor):
                self.tape.now.scales(scaler._scale)

    @guarded
    def scaled(self, scaler: Any, outputs: Any) -> None:
        """Remember that this loss was scaled."""
        asked = self.journal.things[self.journal.label(scaler, "scaler")].settings.get("enabled")
        if asked is False:  # by the script, not for want of a GPU
            return
        self._scales = True
        if self.tape.now is not None and scaler.is_enabled() and scaler._scale is not None:
            self.tape.now.scaled_by(scaler._scale, outputs)
        for tensor in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
            if isinstance(tensor, torch.Tensor):
                mark_scaled(tensor)

    @guarded
    def made(self, scaler: Any, asked: dict[str, Any]) -> None:
        """Take note of a scaler and of what was asked of it."""
        label = self.journal.label(scaler, "scaler")
        known = {name: value for name, value in asked.items() if isinstance(value, (str, float, int))}
        if own := updates_at(type(scaler)):
            known["updates_at"] = own
        self.journal.describe(label, **known, live=bool(scaler._enabled))

    @guarded
    def unscale(self, scaler: Any, optimizer: Any) -> None:
        """Take note of gradients about to be unscaled."""
        self.unscaling.begins(self.journal.label(scaler, "scaler"), scaler, parameters_of(optimizer))
        if self._scaler_step is None:  # not from within the scaler's own step
            label = self.owns(optimizer, parameters_of(optimizer))
            self._shares(scaler, optimizer)
            self._divides(scaler, optimizer)
            self._end_recording(parameters_of(optimizer), label=label)
            self.journal.note(Kind.UNSCALE, self.journal.label(scaler, "scaler"), targets=(label,))
            self.tape.pause()
        self.tape.delivery.pause()

    def _divides(self, scaler: Any, optimizer: Any) -> None:
        """Let gradients be compared at the scale that they are divided by: another scaler's makes them wrong."""
        if self.tape.now is None or not isinstance(getattr(scaler, "_scale", None), torch.Tensor):
            return
        if is_ready(scaler, optimizer):
            with unseen():
                own = float(scaler._scale)
                other = self.tape.now.divided_by(own, parameters_of(optimizer))
            if other:
                label = self.journal.label(scaler, "scaler")
                self.journal.describe(label, multiplied_by=other, divided_by=own)

    def _shares(self, scaler: Any, optimizer: Any) -> None:
        """Look at gradients that several optimizers share, where a scaler is about to divide them for one."""
        if self.tape.now is not None and is_ready(scaler, optimizer):
            self.shared.begins(self.journal.label(optimizer, "optimizer"), scaler, optimizer, self.backwards)

    def _shared_end(self) -> None:
        """Take note of gradients that a scaler has divided a second time."""
        if again := self.shared.ends():
            self.journal.note(Kind.UNSCALED_AGAIN, name=self._names(again))

    def _names(self, parameters: list[torch.Tensor]) -> str:
        self.tape.know(parameters)
        return some([self.tape.name(one)[1] for one in parameters], 2)

    @guarded
    def unscale_ends(self, scaler: Any) -> None:
        """Take note of gradients that have been unscaled: in FP32 they never were."""
        self.tape.delivery.resume()
        self._shared_end()
        if (found := self.unscaling.ends(scaler)) is not None:
            self.journal.describe(self.journal.label(scaler, "scaler"), **found)
        if self._scaler_step is None:
            self.tape.resume()

    @guarded
    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None:
        """Take note of a scaler that is about to step an optimizer, or to skip it."""
        label = self.owns(optimizer, parameters_of(optimizer))
        self._shares(scaler, optimizer)
        self._divides(scaler, optimizer)
        self._end_recording(parameters_of(optimizer), label=label)
        own = self.journal.label(scaler, "scaler")
        self.journal.note(Kind.SCALER_STEP, own, targets=(label,))
        self.tape.pause()
        self.journal.enter(own)
        self._scaler_step = Attempt(label)

    @guarded
    def scaler_step_ends(self, scaler: Any, optimizer: Any) -> None:
        """Take note of whether the step was skipped."""
        self.journal.leave()
        self._shared_end()
        self.tape.resume()
        update, self._scaler_step = self._scaler_step, None
        # A step that was reached may be a fused one, skipped inside.
        skips = False
        if update is not None and scaler.is_enabled():
            skips = not update.reached or overflowed(scaler, optimizer)
        if update is not None and skips:
            self.scales.skipped(self.steps, update.label, parameters_of(optimizer))
        if step := self.skips.wants_next(update.label if update is not None else "", self.steps, skips=skips):
            self.tape.look_at(step)
        if update is not None:
            if scaler.is_enabled():
                self.leftovers.stepped(update.label, parameters_of(optimizer))
            self.stepped(update.label)

    @guarded
    def update_begins(self, scaler: Any, *, given: bool = False) -> None:
        """Take note of a scale that is about to be updated, or replaced by a given one."""
        self.journal.note(Kind.UPDATE, self.journal.label(scaler, "scaler"), name=GIVEN if given else "")
        self._before = about_to_update(scaler)

    @guarded
    def update_ends(self, scaler: Any) -> None:
        """Take note of what the update did to the scale."""
        if self._before is not None:
            before, found = self._before
            label = self.journal.label(scaler, "scaler")
            self.scales.updated(max(0, self.steps - 1), label, before, scaler._scale, found)

    @guarded
    def rescaled(self, scaler: Any, before: float, after: float, overflow: Any) -> None:
        """Take note of the scale of a scaler that is no GradScaler, and of a step that it has skipped."""
        label = self.journal.label(scaler, "scaler")
        self.journal.describe(label, live=True)
        skipped = bool(overflow)
        if skipped:
            self._end_recording()
        with unseen():
            values = [torch.tensor(float(value)) for value in (before, after, skipped)]
        self.scales.updated(self.steps, label, values[0], values[1], values[2:])
        if skipped:
            self.stepped()

    @guarded
    def changed(
        self, kind: Kind, name: str, parameters: list[torch.Tensor], given: tuple[Any, Any] = ((), {})
    ) -> None:
        """Take note of gradients about to be clipped, to a limit that a function of torch's is `given`."""
        if left := self.division.clips(parameters, self.backwards):
            self.journal.note(Kind.LEFT_SCALED, name=self._names(left))
        now = self.tape.now
        limit, by = limit_of(*given, may_wait=now is not None), 0.0
        if now is not None:
            with unseen():
                by = self.hand.clips(*now.multiplied.of(parameters))
        scale = by or (self.scales.current if now is None or now.scale == 1.0 else now.scale) or 1.0
        tensor = isinstance(next(iter(given[0]), None), torch.Tensor)
        at_hand = bool(by) or self._scale_read == self.backwards or tensor
        self.hand.limit = unit_of(limit, scale, read=self._scale_read >= 0, at_hand=at_hand)
        if by and now is not None:
            now.multiplied.minded = self.hand.minded = self.hand.limit == IN_SCALE
        self._end_recording(used=parameters, label="")
        self.used(Kind.READ_GRAD if limit == inf else kind, name, parameters)
        self.hand.limit = ""

    @guarded
    def clipped(self, parameters: list[torch.Tensor]) -> None:
        """Take note of gradients that have been clipped."""
        self.division.clipped()
        self.tape.delivery.shortened = True
        with unseen():
            self.hand.clipped(parameters)

    @guarded
    def owns(self, optimizer: Any, parameters: Iterable[Any]) -> str:
        """Remember which optimizer has which parameters; return its label."""
        label: str = super().owns(optimizer, held := list(parameters))
        self.shared.owns(label, held)
        return label

    @guarded
    def step_begins(self, optimizer: Any) -> None:
        """Take note of an optimizer that is about to change the weights: what it finds may be scaled in part."""
        if self.division.at == self.backwards:
            left, mixed = self.division.steps(optimizer), self.division.mixed(optimizer)
            for kind, found in ((Kind.LEFT_SCALED, left), (Kind.MIXED, mixed)):
                if found and self._scaler_step is None:
                    label = self.journal.label(optimizer, "optimizer")
                    self.journal.note(kind, label, name=self._names(found))
        self.tape.delivery.shortened |= self._scale_read >= 0
        super().step_begins(optimizer)

    @guarded
    def differentiated(self, outputs: Any) -> None:
        """Take note of gradients that are to be part of a loss, as in a gradient penalty."""
        first = outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs), None)
        if self._scales and isinstance(first, torch.Tensor) and is_scaled(first):
            self._scaled_within = self.backwards
            self._scaled_at = self.journal.spot() if self._scale_read != self.backwards else None

    @guarded
    def returned(self, grads: Iterable[object], inputs: Any) -> None:
        """Take note of gradients that the script asked for, in a step that FP32 runs beside."""
        if isinstance(self.tape.now, Compared):
            self.tape.now.returned(grads, inputs, used=not self._owners)
        self.unstepped.asked(grads)

    @guarded
    def backward(self, *given: Any, **named: Any) -> torch.Tensor | None:
        """Take note of a backward; gradients that are part of its loss may be multiplied by the scale still."""
        at, self._scaled_at = self._scaled_at, None
        if at is not None and self._scaled_within == self.backwards:
            self.journal.note_at(at, Kind.READ_GRAD, name=RETURNED)
        if not self._owners:
            self.reaches(*given, **named)
        seed = super().backward(*given, **named)
        if self.tape.now is not None:
            self._multiplied(*given, **named)
        return seed

    def _multiplied(self, tensors: Any, seeds: Any = (), name: str = "") -> None:
        """Look at gradients before a backward adds to them, in a recorded step."""
        if (now := self.tape.now) is None or name or self.tape.what_if is not None:
            return
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        scaled = self._scales and isinstance(loss, torch.Tensor) and is_scaled(loss)
        by = now.scale if scaled else factor(loss, next(iter(seeds), None))
        now.scale_read |= self._scale_read == self.backwards - 1
        self.division.backward_begins(self.steps, self.turns.parameters(), by)

    @guarded
    def backward_ends(self) -> None:
        """Take note of a backward that is over: gradients it has added to may have been divided by the scale."""
        again, rescaled = self.division.backward_ends(self.backwards) if self.division.begun else ([], False)
        at, self._divides_at = self._divides_at, None
        if again and at is not None:
            self.journal.note_at(at, Kind.DIVIDE, name=self._names(again))
        if rescaled:
            self.journal.note(Kind.GROWN, name=TWO_SCALES)
        super().backward_ends()
        if self.reached:
            self.has_reached()

    @guarded
    def scale_read(self) -> None:
        """Take note of a scale that the script reads, in order to divide by it what it measures of gradients."""
        self._scaled_at, self._scale_read = None, self.backwards
        self.journal.withdraw(Kind.READ_GRAD)
        if self._scaled_within == self.backwards:
            self.tape.scaled_within(self.steps)

    def used(self, kind: Kind, name: str, parameters: list[torch.Tensor]) -> None:
        """Take note of gradients that are measured or limited unless the scale was read for that, and of divisions."""
        if kind is Kind.DIVIDE or name in SHORTENS:
            self._divides_at = self.journal.spot()
        if kind is Kind.DIVIDE:
            return
        if self._scale_read != self.backwards or not (kind is Kind.READ_GRAD or name in SHORTENS):
            super().used(kind, name, parameters)

    @guarded
    def casts(self) -> None:
        """Take note of a region of autocast that has begun outside of any module."""
        self.casts_by_hand()
        if self.tape.before_calls and trains():
            self.journal.note(Kind.FORWARD)
        elif trains() and self._owners and not self._heard and (self.tape.by_regions or not self.steps):
            self.tape.casts(self.steps, self.turns.parameters)

    @guarded
    def loaded(self, data: Any, batch: Any) -> None:
        """Take note of the first batch of a data set."""
        rounded = cast_up(data, batch)
        self.not_seen |= {f"{name}{ROUNDED_DATA}": 1 for name in rounded}
        if rounded and not self.tape.before_calls:
            self.tape.unheard(self.steps + 1)  # in this process, a batch is made as a step begins

    @guarded
    def capture_begins(self) -> None:
        """Take note of a graph that is about to be captured: nothing of ours may run until that is done."""
        if self.tape.now is not None:
            self.tape.now.leave("steps abandoned: a CUDA graph was captured in them")
        self.averages.abandon()
        self.capturing = True

    def capture_ends(self) -> None:
        """Go on."""
        self.capturing = False

    @guarded
    def replays(self) -> None:
        """Take note of a graph that runs."""
        if self.tape.now is not None:
            self.tape.now.leave("steps abandoned: a CUDA graph ran in them")
        self.journal.begins()
        self.not_seen[GRAPHS] = self.not_seen.get(GRAPHS, 0) + 1
