"""The recorded steps of a script: which are wanted, the one that is open, and the ones that are done."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.gc_pause import no_collections
from ampcheck.observe.compiled import on_cpu
from ampcheck.observe.execution import Args, Execute, Kwargs
from ampcheck.observe.failure import is_refusal
from ampcheck.observe.model.structure import modules
from ampcheck.observe.script.clock import Clock, Pace
from ampcheck.observe.script.comparing import Compared
from ampcheck.observe.script.delivery import Delivery
from ampcheck.observe.script.gradient_rows import Compare
from ampcheck.observe.script.journal import autocast_dtype
from ampcheck.observe.script.looking_again import Looks, matches_reference
from ampcheck.observe.script.models import Models
from ampcheck.observe.script.optimizers import have_gradients
from ampcheck.observe.script.recording import Recording, Used, unseen
from ampcheck.observe.script.what_if import WhatIf, kinds_that_cannot_be_read
from ampcheck.observe.script.workers import Workers
from ampcheck.values.settings import Schedule

if TYPE_CHECKING:
    from ampcheck.observe.script.recorded import Recorded
    from ampcheck.values.trace import Failure, ModuleInfo

#: Operations after which a step is abandoned: it is no step, but a script that never updates its weights.
MOST_OPERATIONS = 100_000
#: Steps abandoned, after which no other is tried: each took longer than all that a script usually does.
MOST_GIVEN_UP = 2


class Tape(Models):
    """Opens and closes recordings, under the names that the script uses."""

    def __init__(
        self,
        schedule: Schedule,
        compare: Compare,
        execute: Callable[[], Execute],
        what_if: WhatIf | None = None,
        used: Used = lambda *_: None,
    ) -> None:
        """Begin with nothing recorded; `execute` runs operations, `used` hears of those that limit gradients."""
        super().__init__()
        self._used = used
        self.what_if = what_if
        self.recorded: list[Recorded] = []
        self.given_up: dict[str, int] = {}
        self.failure: Failure | None = None
        self.ran: tuple[ModuleInfo, ...] = ()  #: modules of the step in which it ended
        self.failed_in = ""  #: the dtype of the region in which the script ended
        self.now: Recording | None = None  #: the step being recorded
        self.delivery = Delivery(compare)  #: of the last step that was compared
        self.schedule, self._compare, self._execute = schedule, compare, execute
        self.before_calls = False  #: a recording begins with the step, as no call tells of it
        self.by_regions = False  #: it begins with a region of autocast, which computes before its first call
        self.looks, self._versions = Looks(), dict[int, int]()
        self.workers = Workers()
        self._enough = -1  #: the step of which no more is wanted
        self._keeps_scale = False  #: gradients of a scaled loss are part of the loss: FP32 keeps the scale
        self._in_threads = False  #: parts of a step have run in threads of the script's own
        self.in_turn = 1  #: optimizers that step in turn
        self.pace = Pace()  #: of the script, where nothing is recorded
        if what_if is not None:
            what_if.refused = self.refused

    def unheard(self, step: int) -> None:
        """Begin recordings with the step from here on: in the one before this, no module was called that trains."""
        self.before_calls = True
        self.look_at(step)

    def _is_early(self, step: int) -> bool:
        """Tell whether a step is recorded from where it begins, whatever its calls tell."""
        if self.before_calls or self.looks.is_early(step):
            return True
        return self.looks.keeps_half and self.wants(step) and self.schedule.compares(step, self.in_turn)

    def begins(self, step: int, parameters: Callable[[], Iterable[Any]] = tuple) -> None:
        """Record a step from where it begins, before any call, where calls do not tell of all that it does."""
        if self.now is None and (step == self.looks.missed or self._is_early(step)):
            self.know(parameters())
            for module, name in self.uncalled.modules():
                self.give(module, name)
                self._refuse_what_if(module)
            self._open(step)
            if self.what_if is not None:
                self.what_if.enter()

    def casts(self, step: int, parameters: Callable[[], Iterable[Any]]) -> None:
        """Record a step from where a region of autocast begins, until a call shows that calls tell of it."""
        if self.now is None and self.what_if is None and self.wants(step):
            self._open(step, parameters)

    def _open(self, step: int, parameters: Callable[[], Iterable[Any]] | None = None) -> None:
        """Begin to record before any call; modules are looked for by parameters once something uses one."""
        recording = self.now = self._recording(step, compiled=False)
        tracker, looked = recording.recorder.tracker, parameters is None
        recording.before_calls = True

        def running() -> int:
            nonlocal looked
            if not looked and parameters is not None and not recording.idle:
                looked = True
                self.adopt_uncalled(recording, parameters())
            return tracker.by_frame()

        recording.recorder.by_frames = running
        recording.open()
        self.adopt_uncalled(recording)

    def wants(self, step: int) -> bool:
        """Tell whether a step is to be recorded."""
        if step == self._enough or sum(self.given_up.values()) >= MOST_GIVEN_UP:
            return False
        turn = range(step, step + (self.in_turn if self.schedule.steps is not None else 1))
        wanted = self.looks.closer.due(step) or any(self.schedule.wants(at, self.in_turn) for at in turn)
        return wanted and len(self.recorded) < self.schedule.most

    def _recording(self, step: int, *, compiled: bool) -> Recording:
        """Return what is to record a step, in full where that is wanted; else `compiled` lets C do it."""
        compares = self.looks.closer.due(step) or self.schedule.compares(
            step, self.in_turn, matches_reference=matches_reference(self.recorded)
        )
        clock = Clock(self.pace.seconds, self.schedule.slowest)
        if compares or self.what_if is not None:
            given, look = (step, self._execute(), self._compare, self._used), self.looks.closer.second(step)
            compared = Compared(*given, clock=clock, look=look, keeps_scale=self._keeps_scale)
            compared.models, compared.versions = self.models, self._versions
            compared.carries = self.looks.carries(self.recorded)
            compared.spared = self.looks.closer.spares(look)
            self.delivery.end()
            self.delivery = compared.delivery
            if (carried := self.looks.carried.takes(step)) is not None:
                compared.go_on(carried)
            return self.workers.joins(compared)
        compiled = compiled and not self._in_threads  # C does not follow them
        return Recording(step, self._execute(), self._used, clock=clock, compiled=compiled)

    def follow(self, module: torch.nn.Module, args: Args, kwargs: Kwargs, step: int) -> None:
        """Record a module's call as part of a step, from here on if nothing is recorded yet."""
        given, root = len(self._given), self.root(module)
        if self.now is not None and self.now.is_dropped():
            self.close()
            self._enough = step if len(self.recorded) > 1 and self.recorded[-2].dropped else self._enough
            if not self.wants(step):
                return
        if self.now is not None and self.now.before_calls and not self._is_early(step):
            self.by_regions = not self.now.idle
            if self.now.idle:
                self.discard()  # calls tell of this step
        opens = self.now is None
        if self.now is None:
            self._refuse_what_if(module)
            with torch._C.DisableTorchFunction():  # the script's own modes hear nothing of it
                on_a_cpu = on_cpu(modules(module))
            self.now = self._recording(step, compiled=on_a_cpu)
            self.now.open()
        if opens or len(self._given) > given:
            self.adopt_given(self.now)
        if self.what_if is not None:
            self.what_if.enter()
        self.now.autocast = self.now.autocast or autocast_dtype()
        self.now.recorder.adopt(module, root.name)
        self.now.round_weights()
        self.now.calls(self.models())
        if opens:
            self.now.recorder.tracker.call(module, args, kwargs)
        elif self.now.recorder.operations > MOST_OPERATIONS:
            self._enough = step
            self.discard(f"steps of more than {MOST_OPERATIONS:,} operations, too long to be recorded")

    def _refuse_what_if(self, module: torch.nn.Module) -> None:
        """Try no other precision on parameters whose gradients could not be given back as FP32 has them."""
        if self.what_if is None:
            return
        kinds = kinds_that_cannot_be_read(module)
        if kinds:
            self.what_if = None
            self.given_up[f"another precision, which is not tried on parameters of type {min(kinds)}"] = 1

    def backward(self, loss: Any, *, scaled: bool, by: float = 1.0) -> torch.Tensor | None:
        """Note the backward of a loss; return what it starts from where another precision is tried."""
        if (self.workers.preparation.mode or self.workers.evaluation.mode) is not None:
            self.workers.trains()
        if self.delivery.mode is not None:
            self.delivery.end()
        if self.now is None:
            return None
        if self.now.begins_backward(by, given=scaled and loss is None):
            self.unheard(self.now.step + 1)
        if not isinstance(loss, torch.Tensor):
            return None
        if not scaled:
            self.now.keep_loss(loss)
        if self.what_if is None or loss.numel() != 1 or not isinstance(self.now, Compared):
            return None
        return self.what_if.seed(loss, self.now)

    def scaled_within(self, step: int) -> None:
        """Take note of a script that knows the scale within a step, and multiplies or divides by it there."""
        if not self._keeps_scale:
            self._keeps_scale = True
            self.discard()
            self.recorded.clear()
            self.look_at(step + 1)

    def look_at(self, step: int) -> None:
        """Record a step in full, where the user has not said which ones."""
        self.looks.closer.step = step if self.schedule.steps is None else -1

    def again(self, step: int) -> bool:
        """Tell whether an optimizer asks its closure again: what it was asked before is the step, recorded."""
        if self.now is None or not self.now.backwards:
            return False
        self._enough = step
        return True

    def close(
        self, parameters: Iterable[torch.Tensor] | None = None, stepped: Iterable[torch.Tensor] = ()
    ) -> None:
        """End the recorded step, before gradients (of these parameters) are changed or used, or these are stepped."""
        recording, self.now = self.now, None
        if recording is None:
            return
        with no_collections():  # what is made here is kept: a full collection would take as long as the rest
            held, given = list(stepped), None if parameters is None else list(parameters)
            recording.stepped(held)
            known = [*held, *(given or ())]
            if recording.before_calls and have_gradients(known):  # of another thread, a copy, torch.func
                recording.is_sent_gradients()
            self.hold(recording, known)
            self._close(recording, given)

    def backward_ends(self) -> None:
        """Look at the gradients that a backward has left."""
        if self.now is not None and self.what_if is None:
            self.now.backward_ended()

    def turn(self) -> AbstractContextManager[bool] | None:
        """Return what the running thread has to wait for, where it runs a part of the recorded step."""
        return None if self.now is None else self.now.recorder.turn()

    def pause(self) -> None:
        """See nothing of what an optimizer does to the weights, where the recording goes on behind it."""
        if self.now is not None:
            self.now.pause()

    def resume(self) -> None:
        """Go on with a recording that was paused."""
        if self.now is not None:
            self.now.resume()

    def arrives(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of gradients that an optimizer is about to use."""
        with unseen():
            self.delivery.arrives((self.name(one)[1], one) for one in parameters)
        if self.recorded and self.now is None:
            self.looks.delivered(self, self.recorded[-1])

    def look(self, parameters: Iterable[torch.Tensor]) -> None:
        """Measure gradients that are used within the backward, which ends the step no earlier."""
        if self.now is not None:
            self.hold(self.now, held := list(parameters))
            self.now.gradients(self.now.named(held))

    def _close(self, recording: Recording, parameters: Iterable[torch.Tensor] | None) -> None:
        self._stop(recording)
        self.looks.closer.done(recording.step)
        if recording.left and (recording.backwards or not recording.before_calls):
            self._abandon(recording.left)
            return
        if recording.left or not recording.backwards:
            return
        recording.gradients(recording.named(parameters))
        if self.what_if is not None and isinstance(recording, Compared):
            self.what_if.settle(recording)
        recording.leaves(self.models())
        done = recording.finish()
        self.workers.recorded(recording)
        self._in_threads = self._in_threads or recording.recorder.heard_threads
        if isinstance(recording, Compared):
            self.in_use = recording.by_hand.beside(self.in_use) | self.in_use
        if done.beside is not None and done.whole:  # what was missed of a step before has been seen now
            self.recorded = [one for one in self.recorded if one.whole or one.overflowed]
        if isinstance(recording, Compared) and recording.takes_scale and not self._keeps_scale:
            self.scaled_within(recording.step)
            return
        self.recorded.append(done)
        self.looks.again(self, done, recording)
        if self.what_if is None:
            self.delivery.begins()

    def raised(self, error: BaseException) -> None:
        """Take note of what ended the script, if that was the precision of a step that was running."""
        if (recording := self.now) is None:
            return
        refused = recording.autocast and is_refusal(error)
        if isinstance(error, Exception) and self.what_if is None and not refused:
            self.close()  # nothing goes on listening, and what the step has recorded is kept
            return
        self.now = None
        self._stop(recording)
        if not isinstance(error, Exception):
            return
        self.failure, self.failed_in = recording.failed(error), recording.autocast
        self.ran = recording.recorder.tracker.infos()

    def refused(self, error: RuntimeError) -> None:
        """Take note of an operation that a precision refuses, and that ran in FP32 instead."""
        if self.now is not None and self.failure is None:
            self.failure = self.now.failed(error)

    def _stop(self, recording: Recording) -> None:
        if self.what_if is not None:
            self.what_if.stop()
        recording.close()

    def end(self) -> None:
        """Look at what is left behind when the watch ends."""
        self.delivery.end()
        self.left_behind.end()
        self.workers.end()

    def discard(self, why: str = "") -> None:
        """Give the open recording up."""
        recording, self.now = self.now, None
        if recording is not None:
            self.delivery.end()
            self.delivery = Delivery(self._compare)
            self._stop(recording)
            if why or (recording.left and not recording.before_calls):
                self._abandon(recording.left or why)

    def _abandon(self, why: str) -> None:
        self.given_up[why] = self.given_up.get(why, 0) + 1
