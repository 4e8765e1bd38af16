"""One step of a script recorded in full: with what FP32 would have there beside it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from ampcheck.observe import modes
from ampcheck.observe.execution import Args, Execute, Kwargs, State
from ampcheck.observe.fp8.by_hand import EIGHTHS, CastsByHand
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.checks import LOOKS, Checks
from ampcheck.observe.reference.given import Given
from ampcheck.observe.reference.joined import Elsewhere, Joined, Sends
from ampcheck.observe.reference.lineage import error_jumps
from ampcheck.observe.reference.pair import SAMPLES, pair_errors
from ampcheck.observe.reference.paired import PairedBook
from ampcheck.observe.reference.picks import WORSE, Picks
from ampcheck.observe.reference.returned import Returned
from ampcheck.observe.reference.shadow import TAKEN
from ampcheck.observe.script.clock import Clock
from ampcheck.observe.script.delivery import Delivery
from ampcheck.observe.script.gradient_rows import Compare, GradientRows, takes_scale
from ampcheck.observe.script.held_state import HeldState, Models
from ampcheck.observe.script.reading import name_of
from ampcheck.observe.script.recorded import Beside, Recorded
from ampcheck.observe.script.recording import Named, Recording, Used, unseen
from ampcheck.observe.script.second_run import Look, SecondRun
from ampcheck.observe.script.state.carried import Carried
from ampcheck.observe.script.state.naming import called
from ampcheck.observe.statistics.memory import tensors_of
from ampcheck.observe.unusual import plain
from ampcheck.values.formats import HALF_DTYPES, SHORT_DTYPE
from ampcheck.values.trace import BRANCH, Site, Trace, summed_up

#: Octaves that gradients may be away from a loss scale that has multiplied them.
_NEAR = 0.4
#: A scale of so many octaves up or down takes numbers out of FP32's range.
_FAR = 64

_current_node = torch._C._current_autograd_node


class Compared(Recording):
    """A step being recorded in full."""

    compares = True
    dropped = False  #: its gradients overflowed and were cleared
    carries, spared = False, ""  #: keeps what it leaves; the module whose weights are not rounded
    models: Callable[[], Iterable[tuple[str, torch.nn.Module]]] = tuple  #: that the script has called so far

    def __init__(  # noqa: PLR0913  # keywords, each a way to compare
        self,
        step: int,
        execute: Execute,
        compare: Compare,
        used: Used = lambda *_: None,
        *,
        clock: Clock | None = None,
        look: tuple[Look, torch.dtype] | None = None,
        keeps_scale: bool = False,
    ) -> None:
        """Prepare to record; `compare` says what is to be known of a gradient, `look` what a second run tries.

        FP32 keeps the loss scale where the script divides by it on the way, and not only at the end.
        """
        clock = clock or Clock()
        self._shadow = Joined(clock.timed(execute))
        self._second = None if look is None else SecondRun(self._shadow, *look, self._weights)
        self._shadows = [self._shadow] if self._second is None else [self._second, self._shadow]
        self._multiplied_by: set[float] = set()  #: the loss scales of this step
        self._keeps_scale = keeps_scale
        #: An operation of the backward, or on gradients that were asked for, is given the loss scale as a number.
        self.takes_scale = self._has_returned = False
        self.step_record = PairedBook(self._shadow, SAMPLES)
        runs = self._shadow, self._second
        self._left = HeldState(*runs, lambda: self.scale)
        self._rows = GradientRows(compare, runs, lambda: self.scale, kept=keeps_scale)
        self.versions: dict[int, int] = {}  #: by storage of a buffer, how often written when first seen
        self.by_hand = CastsByHand()
        self._measured: dict[int, torch.Tensor] = {}  #: by parameter, where its gradient is no longer its own
        super().__init__(step, execute, used, clock=clock)
        for shadow in self._shadows:
            shadow.gave_way = self.gave_way
        self._shadow.given = self._given = Given(self._weights, called, self.recorder.tracker.buffers)
        self._given.fed_back.was_there = self._left.was_there
        self._shadow.picks = self._picks = Picks()
        self._checks, lost = Checks(self.gave_way), lambda kind, place: self._used(kind, place, [])
        self._returned = Returned(self._shadow.of, self.gave_way, lost)
        self.delivery = Delivery(compare, self._shadows[::-1], lambda: self.scale, kept=keeps_scale)

    def go_on(self, carried: Carried) -> None:
        """Begin with what FP32 had when the step before ended."""
        with unseen():
            carried.give(self._shadows[::-1])
        self.carried, self._given.carried = carried, carried.places

    def join(self, elsewhere: Elsewhere | None, sends: Sends | None) -> None:
        """Go on from what other threads have computed; `sends` hears of operations, once each."""
        self._shadow.sends = sends
        for shadow in self._shadows:
            shadow.elsewhere = elsewhere

    def _recorder(self) -> Recorder:
        return Recorder((), samples=SAMPLES, execute=self._run, step_record=self.step_record)

    def _not_carried(self) -> Iterator[torch.Tensor]:
        yield from (parameter for _, _, parameter in self.recorder.tracker.parameters())
        for _, model in self.models():  # a weight may be read before its model is called
            yield from model.parameters()
            norms = (one for one in model.modules() if isinstance(one, _NormBase))
            yield from (one for norm in norms for one in norm.buffers())  # not computed with as they train

    def _weights(self) -> Iterator[torch.Tensor]:
        yield from self._not_carried()
        yield from (buffer for _, buffer in self.recorder.tracker.buffers())

    def _run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        self._before(func, args)
        within = _current_node() is not None
        if within or self._has_returned:
            self.takes_scale |= takes_scale(args, self.scale, divides=not within, part=self.scale_read)
        if self._rows.touches(func, args, kwargs):
            with unseen():
                self._rows.keep(self.recorder.tracker.parameters())
        if id(func) in LOOKS:
            self._checks.note(func, args, self._shadow.of)
        out = self._shadows[0].run(func, args, kwargs)
        if self._has_returned:
            self._returned.follow(name_of(func), args, kwargs, out)
        if type(out) is torch.Tensor and (out.dtype in EIGHTHS or self.by_hand.multiplies(func)):
            try:
                with unseen():
                    self.by_hand.note(self.recorder, func, args, out)
            except Exception as error:  # noqa: BLE001  # of our own
                self.gave_way(error)
        return out

    @modes.unseen
    def returned(self, grads: Iterable[object], inputs: Any, *, used: bool) -> None:
        """Compare gradients that the script asked for with FP32's; measure those of the `inputs` if they are used."""
        self._has_returned = True
        self._returned.note(found := list(grads))
        given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        both = zip(given, found, strict=False)
        own = [(p, g) for p, g in both if isinstance(p, torch.nn.Parameter) and isinstance(g, torch.Tensor)]
        if used:
            self._measured.update((id(parameter), grad) for parameter, grad in own)
        self.gave(own)

    def scales(self, scale: torch.Tensor) -> None:
        """Take note of a loss that is about to be scaled: FP32's is compared with it at the same scale."""
        for shadow in self._shadows:
            shadow.forget(scale)

    def scaled_by(self, scale: torch.Tensor, outputs: Any = ()) -> None:
        """Take note of the loss scale: in FP32 there is none."""
        first = self.scale == 1.0
        super().scaled_by(scale, outputs)
        self._multiplied_by.add(self.scale)
        if self._keeps_scale:
            return
        with unseen():
            if first:
                self._added_to()
            for shadow in self._shadows:
                shadow.scale = self.scale or 1.0
                shadow.set(scale, 1.0)
                for number in tensors_of((outputs,)):
                    if not number.requires_grad:  # no loss, but what is to multiply one
                        wide = shadow.of(number)
                        shadow.keep(number, (number if wide is None else wide) / self.scale)

    def _added_to(self) -> None:
        """Unscale the gradients that there were when the recording began: this step's are added to them."""
        for _, _, parameter in self.recorder.tracker.parameters():
            grad = plain(gradient_of(parameter))
            for shadow in self._shadows:
                if grad is not None and shadow.of(grad) is None:
                    shadow.keep(grad, grad.float() / self.scale)

    def round_weights(self, *, again: bool = False) -> None:
        """Round the weights of the second run, where that is wanted."""
        if self._second is not None:
            with unseen():
                held = self.recorder.tracker.parameters()
                self._second.round_weights((p for m, _, p in held if not m or m != self.spared), again=again)

    def resume(self) -> None:
        """Go on where nothing was seen for a while: an optimizer may have changed weights."""
        super().resume()
        self.round_weights(again=True)

    def close(self) -> None:
        """Stop recording; keep in mind what has made what is left."""
        lineage = self.recorder.tally.lineage
        left = None if lineage is None else lineage.left()
        super().close()
        with unseen():
            self._made = {} if left is None else self.recorder.tally.made(left())

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep a loss, as it is before it is scaled."""
        super().keep_loss(loss)
        self._checks.backward = True
        if self._second is not None:
            with unseen():
                self._second.keep_loss(loss)

    def remember(self, models: Models) -> None:
        """Keep what models hold in half precision when the step begins."""
        with unseen():
            self._left.remember(models)

    def leaves(self, models: Models) -> None:
        """Compare what models hold at the end of the step."""
        with unseen():
            self._left.compare(models)

    def _precision(self, trace: Trace) -> str:
        """Return the precision of the step; that of the gradients it was sent, where it computes none itself."""
        own, grads = trace.precision(self.autocast), (gradient_of(one) for _, _, one in self.named(None))
        return SHORT_DTYPE.get(self._shadow.made_in(grads), own) if self.sent and own == "fp32" else own

    def measured(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Keep a low-precision gradient, and return what FP32 has beside it."""
        before = self._measured.get(id(leaf))
        reference = self._shadow.of(grad)
        wide = grad / self.scale if reference is None else reference.clone()
        together = grad if before is None else self._shadow.run(torch.ops.aten.add.Tensor, (before, grad), {})
        self._measured[id(leaf)] = together
        return wide.to(leaf.dtype)

    def divided_by(self, scale: float, parameters: Iterable[torch.Tensor]) -> float:
        """Compare gradients at the scale that they are divided by; return another one that multiplied them, or 0."""
        others = self._multiplied_by - {scale}
        super().divided_by(scale, given := list(parameters))
        factor = self._rows.divides(given, others)
        nearest = min(others, key=lambda other: abs(math.log(factor / other)), default=0.0) if factor else 0.0
        return nearest if nearest and abs(math.log2(factor / nearest)) < _NEAR else 0.0

    def is_dropped(self) -> bool:
        """Tell whether its gradients overflowed and are gone again, without an optimizer."""
        if not self.backwards or self.given or not self._rows.seen:
            return False
        with unseen():
            self.dropped = self._rows.gone() and self._rows.overflowed()
        return self.dropped

    def overflowed(self) -> bool:
        """Tell whether a gradient was not finite that is finite in FP32."""
        return self._rows.overflowed()

    def restore_buffers(self) -> None:
        """Give the modules the running averages that FP32 has."""
        for _, buffer in self.recorder.tracker.buffers():
            if (reference := self._shadow.of(buffer)) is not None:
                buffer.copy_(reference)

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return gradient_of(parameter) if (known := self._measured.get(id(parameter))) is None else known

    def _states(self, parameters: Iterable[Named]) -> Iterator[State]:
        """Yield gradients and parameters; compare the gradients with FP32's."""
        given = list(parameters)
        known = {(module, name): id(parameter) for module, name, parameter in given}
        for module, name, parameter, grad in self._fresh(given):
            yield module, f"param_grad[{name}]", grad
            yield module, f"param[{name}]", parameter
            self._rows.add(f"{module}.{name}".lstrip("."), known[module, name], grad)

    def backward_ended(self) -> None:
        """Look at gradients, and wait for what the script does with them."""
        super().backward_ended()
        self._rows.wait(parameter for _, _, parameter in self.recorder.tracker.parameters())

    @modes.unseen
    def finish(self) -> Recorded:
        """Bring everything to the host."""
        fetched, reference = self.recorder.fetch(), self.step_record.fetch_reference()
        trace = self.recorder.trace(fetched)
        log2_scale = self.log2_scale
        rows, untouched = self._rows.fetch()
        failed = {f"results of {name} {TAKEN}": n for name, n in self._shadow.failed.items()}
        lost, read = self._checks.fetch(overflowed=self.overflowed() or self._returned.overflowed)
        (picks, integers), given = self._picks.fetch(self._shadow.outside), self._given.missed(self.versions)
        failed |= {f"{one.words} {BRANCH}": 1 for one in self._picks.branches()}
        failed |= {f"{one.words} {WORSE}": 1 for one in picks if one.far} | self.multiplied.missed()
        failed |= given | self._returned.missed() | read | self._rows.missed()
        trace = replace(trace, not_audited={**trace.not_audited, **failed}, integers=integers)
        precision, by = self._precision(trace), self.scaling.scale or 1.0
        value, wide_value = sum(fetched.losses), sum(reference.losses)
        product = not self.overflowed() and self.multiplied.is_only_product(trace, value, wide_value)
        losses = (math.inf if lost else (wide_value if product else value) / by, wide_value / by)
        kept = by > 1.0 or self._keeps_scale
        # A scale that is applied by hand multiplies FP32's loss too, so both are compared as they are.
        errors = pair_errors(reference, fetched, 0 if kept else log2_scale) if precision != "fp32" else {}
        low_dtype, runs, old = HALF_DTYPES.get(precision, "float32"), self._shadows[::-1], self._given
        if (asked := bool(self.carried is not None or old.found or old.beside)) or self.carries:
            held = runs, self._not_carried(), old.holds, old.carried | self._made
            self.carried = Carried(*held, asked=asked, was_read=bool(old.outside))
        self.delivery.keep(*self._left.goes_on_with(self.recorder, self._made), self._checks.read_behind())
        outside: dict[tuple[str, int], Site | None] = {**self._shadow.outside, **old.outside}
        for shadow in self._shadows:
            shadow.clear()
        by_site, down = reference.sites.items(), -log2_scale if kept and abs(log2_scale) < _FAR else 0
        sites = {s: stats.scaled(down) if down and s.scaled else stats for s, stats in by_site}
        wide = replace(trace, sites=sites, casts={}, not_audited={}, constants=(), integers=(), caught=())
        wide = replace(wide, steps=(summed_up(wide, losses[1], 0, "float32"),))
        look, second_rows, loss = (None, {}, 0.0) if self._second is None else self._second.fetch()
        beside = Beside(
            wide,
            errors,
            error_jumps(self.recorder.sources(), errors, low_dtype, outside) if errors else (),
            rows,
            frozenset(self._rows.seen if precision == "fp32" else self._rows.both),
            self._left.off(overflowed=self.overflowed()),
            look,
            self.spared,
            second_rows,
            loss / by,
            tuple(loss for loss in self._left.updates if loss.moved),
            self._given.taken if look is Look.MOVED else (),
            picks,
            self._picks.by_zero(),
            self._second is not None and self._second.parted,
            {} if self._second is None else self._second.worse,
            self.delivery,
            untouched,
            *self._rows.changes(),
            self._checks.hidden(),
            self._left.compared,
        )
        trace = replace(trace, steps=(summed_up(trace, losses[0], log2_scale, low_dtype),))
        what = self.step, trace, precision, log2_scale, losses, beside, self.scaling, self.last
        return Recorded(*what, self._given.entered, self.dropped)
