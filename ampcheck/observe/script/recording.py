"""One step of a script, recorded: what it computed, and what it did with its gradients."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from ampcheck.observe import modes
from ampcheck.observe.execution import Args, Execute, Kwargs, State
from ampcheck.observe.failure import locate
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.script.clock import Clock
from ampcheck.observe.script.guard import not_seen_because
from ampcheck.observe.script.reading import ADDS, name_of, owners, use_of
from ampcheck.observe.script.recorded import Recorded
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE
from ampcheck.observe.script.scaling.scaled_by_hand import (
    Multiplied,
    Probe,
    Scaling,
    before_step,
    probes,
    sizes,
)
from ampcheck.observe.script.state.stale_casts import StaleCasts
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import version_of
from ampcheck.observe.unusual import plain
from ampcheck.values.formats import HALF_DTYPES
from ampcheck.values.loop import Kind
from ampcheck.values.trace import Failure, summed_up
from ampcheck.values.wording import location

_current_node = torch._C._current_autograd_node
#: Listens to the use of gradients: what kind, by which operation, whose.
Used = Callable[[Kind, str, list[torch.Tensor]], None]
#: A parameter: the module that owns it, its name there, and itself.
Named = tuple[str, str, torch.Tensor]


#: Why a step is abandoned.
BEGUN_BEFORE = "steps abandoned: they had begun before they were recorded"


class Recording:
    """A step being recorded: what it computes, and nothing beside it."""

    compares = False  #: whether FP32 runs beside it
    _shadows: Sequence[Any] = ()  #: what runs beside it
    carried: Any = None  #: what FP32 has of the numbers in half precision that are there when it ends

    def __init__(
        self,
        step: int,
        execute: Execute,
        used: Used = lambda *_: None,
        *,
        clock: Clock | None = None,
        compiled: bool = True,
    ) -> None:
        """Prepare to record; `execute` runs an operation as the script wants it, the clock says for how long.

        `used` hears of operations that measure or limit gradients; `compiled` lets C do what it can.
        """
        self.step = self.last = step
        self.scale = 1.0
        self._paused = False  #: it sees nothing for a while
        self._before_pause: list[tuple[torch.Tensor, int]] = []  #: weights and their versions
        self.before_calls = False  #: it began before a module was called
        self.called = False  #: since then one was
        self.works = False  #: before that it has computed something, see `idle`
        self.backwards = 0
        self.given = False  #: an optimizer was given gradients of it
        self.sent = False  #: these were not computed in it
        self.multiplied = Multiplied()  #: losses, where no GradScaler scaled them
        self.scaling = Scaling()
        self._scaled: list[Probe] = []  #: gradients of a scaled loss
        self._looked = False  #: the script has measured gradients
        self.autocast = ""  #: the dtype of the regions that its modules are called in
        self._used = used
        self._compiled = compiled
        self.clock = clock or Clock()
        self._execute = self.clock.timed(execute)
        self.left = ""  #: why it was abandoned, if it was
        self.scale_read = False  #: the script has read the loss scale before a backward
        self._uses_seen: set[str] = set()  #: parameters whose gradients were measured
        self.recorder = self._recorder()
        self.recorder.spared = self.gave_way
        self.recorder.follow_threads()
        self._stale = StaleCasts(torch._C._autograd._get_sequence_nr())

    def _recorder(self) -> Recorder:
        return Recorder((), execute=self._run, compiled=self._compiled)

    def _run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        self._before(func, args)
        return self._execute(func, args, kwargs)

    def _before(self, func: Any, args: Args) -> None:
        """Look at an operation that is about to run, and now and then at the clock."""
        if self.clock.late():
            self.leave(self.clock.shown)
        try:
            if _current_node() is None:
                self._uses(args)
            if self.backwards:
                self._used_by(func, args)
        except Exception as error:  # noqa: BLE001  # of our own
            self.gave_way(error)

    def gave_way(self, error: Exception) -> None:
        """Take note of an error of our own: the script goes on, its step is not recorded."""
        self.leave(f"steps abandoned: {not_seen_because(error)}")

    def leave(self, why: str) -> None:
        """Let the rest of the step run as if nothing were recorded."""
        if not self.left:
            self.left = why
            self.recorder.step_aside()

    def _uses(self, args: Args) -> None:
        """Tell of a weight, once, that an operation of the forward takes as it was before it was changed."""
        weight = self._stale.among(args)
        if weight is not None:
            held = self.recorder.tracker.parameters()
            name = next((f"{path}.{name}".lstrip(".") for path, name, one in held if one is weight), "")
            self._used(Kind.STALE_CAST, name, [weight])

    def _used_by(self, func: Any, args: Args) -> None:
        """Tell of gradients that an operation measures, limits or adds to."""
        if name_of(func) in ADDS and _current_node() is None and self.multiplied.by >= SMALLEST_SCALE:
            with unseen():
                parameters = [item[2] for item in self.recorder.tracker.parameters()]
                changed, others = owners(args[:1], parameters), list(owners(args[1:], parameters))
                if not others and self.multiplied.holds(held := list(changed)) and held:
                    self.multiplied.added.add(location(*running_line()))
        use = use_of(func, args, measured=self._looked)
        if use is not None:
            kind, name, values = use
            with unseen():
                found = list(owners(values, (item[2] for item in self.recorder.tracker.parameters())))
            if found:
                self._looked = self._looked or kind is Kind.READ_GRAD
                divisor = self.multiplied.changes(name, args, found)
                self._used(kind, name, found)
                if divisor:
                    self._used(Kind.DIVISOR, divisor, found)

    def open(self) -> None:
        """Begin to record."""
        self.clock.start()
        self.recorder.__enter__()

    def close(self) -> None:
        """Stop recording; what was recorded stays."""
        self.resume()
        self.recorder.__exit__(None, None, None)
        self.recorder.by_frames = None  # it may hold this recording, which is to go with its last name

    def pause(self) -> None:
        """See nothing for a while: of what an optimizer does."""
        self.given = True
        if not self._paused:
            self._before_pause = [(one, version_of(one)) for _, _, one in self.recorder.tracker.parameters()]
            self._paused = self.recorder.pause()

    def resume(self) -> None:
        """Go on where nothing was seen for a while."""
        if self._paused:
            self._paused = False
            with unseen():
                self._take_stepped()
            self.recorder.resume()
            self.recorder.resumes()

    def _take_stepped(self) -> None:
        """Let FP32 go on from the weights that the script has, where an optimizer has stepped them unseen."""
        stepped = [one.detach() for one, was in self._before_pause if version_of(one) != was]
        for shadow in self._shadows:
            for one in stepped:
                if shadow.of(one) is not None:
                    shadow.replace(one, one.float())

    def is_dropped(self) -> bool:
        """Tell whether its gradients overflowed and are gone again, without an optimizer."""
        return False

    @property
    def idle(self) -> bool:
        """Whether nothing was computed since in half precision, or that a gradient could flow through."""
        return self.recorder.first_node == torch._C._autograd._get_sequence_nr() and not any(self._shadows)

    def round_weights(self, *, again: bool = False) -> None:
        """Round the weights of the second run, where that is wanted; all of them `again` behind an optimizer."""

    def calls(self, models: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Take note of a call; what was changed before the first one, as averages are, was no part of the step."""
        if not self.called:
            self.called, self.works = True, not self.idle
            self.remember(models)

    def remember(self, models: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Keep what models hold in half precision when the step begins."""

    def leaves(self, models: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Compare what models hold at the end of the step."""

    def failed(self, error: Exception) -> Failure:
        """Return what a step raised, and where."""
        return locate(error, self.recorder.tracker, self.recorder.failed)

    def scaled_by(self, scale: torch.Tensor, _: Any = ()) -> None:
        """Take note of the loss scale, and of what was multiplied by it."""
        with unseen():
            self.scale = float(scale)

    def divided_by(self, scale: float, _: Iterable[torch.Tensor]) -> float:
        """Take note of what gradients are divided by; return the scale that multiplied them if it was another, or 0."""
        self.scale = scale
        return 0.0

    def scales(self, scale: torch.Tensor) -> None:
        """Take note of a loss that is about to be multiplied by the loss scale."""

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep a loss, as it is before it is scaled."""
        with unseen():
            number = plain(loss)
            if number is not None and number.numel() == 1 and number.is_floating_point():
                self.recorder.step_record.keep_loss(number.detach())

    def begins_backward(self, by: float, *, given: bool) -> bool:
        """Take note of a backward of a loss multiplied `by` a constant, or of one that starts from `given` gradients.

        Return whether it is abandoned because what these hold was computed before it began: FP32 would have others.
        """
        late = given and not self.backwards
        if late:
            self.leave(BEGUN_BEFORE)
        self.backwards += 1
        self.multiplied.begins(by)
        return late

    def is_sent_gradients(self) -> None:
        """Take note of gradients that are there at the step: of another thread, where no backward ran in this one."""
        self.sent, self.backwards = not self.backwards, max(1, self.backwards)

    def gave(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take note of gradients that the script has asked for, each behind its parameter."""
        if self.scale == 1.0:
            self.multiplied.gave(pairs)
        else:
            self._scaled = self._scaled or sizes(pairs)

    def backward_ended(self) -> None:
        """Look at gradients before they may be divided by a scale that was applied by hand."""
        held = list(self.recorder.tracker.parameters())
        with unseen():
            if self.scale != 1.0:
                self._scaled = probes(parameter for _, _, parameter in held)
                return
            self.multiplied.ends(parameter for _, _, parameter in held)
        if self.multiplied.by >= SMALLEST_SCALE:
            self.gradients(held)

    def stepped(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of what an optimizer is about to step: whether the gradients have been divided since."""
        with unseen():
            self.scaling = self.multiplied.scaling(parameters)
        if self.scaling.known:
            self.scale = self.scaling.scale

    def before_step(self, parameters: Iterable[torch.Tensor]) -> tuple[bool, str]:
        """Tell whether the script has divided gradients by the loss scale itself, and what to call their step."""
        with unseen():
            held = list(parameters)
            divided, name = before_step((self.scale, self._scaled), self.multiplied.by, held)
            return divided or self.multiplied.shrunk(held), name

    def named(self, parameters: Iterable[torch.Tensor] | None) -> list[Named]:
        """Return the step's parameters with their names; some of them, or all."""
        wanted = None if parameters is None else {id(parameter) for parameter in parameters}
        return [one for one in self.recorder.tracker.parameters() if wanted is None or id(one[2]) in wanted]

    def gradients(self, parameters: Iterable[Named]) -> None:
        """Measure gradients as they are after the backward: scaled, and not clipped."""
        with unseen():
            self.recorder.states([*self._states(parameters)])

    def _states(self, parameters: Iterable[Named]) -> Iterator[State]:
        """Yield what is to be measured between the backward and the update."""
        for module, name, _, grad in self._fresh(parameters):
            yield module, f"param_grad[{name}]", grad

    def _fresh(self, parameters: Iterable[Named]) -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
        """Yield parameters whose gradients were not measured yet, and these."""
        for module, name, parameter in parameters:
            full = f"{module}.{name}".lstrip(".")
            own, held = plain(parameter), plain(self._gradient(parameter))
            if own is not None and held is not None and full not in self._uses_seen:
                self._uses_seen.add(full)
                yield module, name, own.detach(), held

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return gradient_of(parameter)

    @modes.unseen
    def finish(self) -> Recorded:
        """Bring everything to the host."""
        fetched = self.recorder.fetch()
        trace = self.recorder.trace(fetched)
        trace = replace(trace, not_audited={**trace.not_audited, **self.multiplied.missed()})
        precision = trace.precision(self.autocast)
        loss = sum(fetched.losses) / (self.scaling.scale or 1.0)
        summary = summed_up(trace, loss, self.log2_scale, HALF_DTYPES.get(precision, "float32"))
        trace = replace(trace, steps=(summary,))
        return Recorded(
            self.step, trace, precision, self.log2_scale, (loss, math.nan), None, self.scaling, self.last
        )

    @property
    def log2_scale(self) -> int:
        """Return the power of two that is nearest to the loss scale."""
        return round(math.log2(self.scale)) if 0 < self.scale < math.inf else 0


def unseen() -> ExitStack:
    """Return a context in which nothing that runs is seen by the script or a recorder."""
    stack = ExitStack()
    stack.enter_context(torch._C._DisableTorchDispatch())
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(torch.no_grad())
    for key in (torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA):
        stack.enter_context(torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)))
    return stack
