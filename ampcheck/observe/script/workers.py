"""Half-precision numbers that threads of the script's own compute beside its training, as feeders and teachers do.

A step that is recorded sees them when they are there: as FP32 numbers, or as half-precision ones that FP32 takes as
exact. So the operations of such threads run in FP32, too, from the first half-precision number on, and a recorded step
goes on from that. It does so for as long as little time is spent on it.
"""

import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.model.gradients import others_begin, thread_ends
from ampcheck.observe.modes import OwnMode
from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.reference.storage import Reference
from ampcheck.observe.script.evaluating import Evaluation
from ampcheck.observe.script.guard import surely
from ampcheck.observe.script.preparation import Preparation
from ampcheck.observe.script.served import Served
from ampcheck.observe.script.state.stale_casts import KeptCasts
from ampcheck.observe.statistics.memory import tensors_of
from ampcheck.values.loop import ELSEWHERE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampcheck.observe.lanes import Lane
    from ampcheck.observe.reference.joined import Sends
    from ampcheck.observe.script.comparing import Compared
    from ampcheck.observe.script.recording import Recording

_current_node = torch._C._current_autograd_node
_CAST, _COPY = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default
#: What is not audited of them, behind the line of the first.
COMPUTED_ELSEWHERE = "half-precision numbers computed in threads of the script's own"


def _sends(watcher: Any, func: Any, args: Args, out: Any) -> None:
    """Look at an operation that may make a gradient, or half precision of one, for another thread."""
    sent = watcher.thread.sent

    def tell(name: str) -> None:
        watcher.journal.note(Kind.SENT_GRAD, name=name)

    if _current_node() is None:
        sent.sends(func, args, out, tell)
        return
    sent.computed(tensors_of((out,)))
    if func is _CAST and not watcher.thread.runs:
        sent.casts_within(args[0], out, tell)


class _Listener(BesideMode):
    """Follows one thread."""

    def __init__(self, results: Served, watcher: Any) -> None:
        super().__init__(results)
        self._results, self._watcher = results, watcher
        self._kept: KeptCasts | None = KeptCasts()
        self._lane: Lane | None = None  #: what this thread runs of the step that is recorded
        self._trains = False  #: this thread has had a backward of its own

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if self._watcher.thread.runs:  # it trains, after all
            self._results.computed = None
            self.step_aside()
        elif not self._watcher.capturing:
            lane = self._joins(args)
            if lane is not None:
                return self._seen(func, args, lane.lanes.run(lane, func, types, args, kwargs or {}))
            if self._results.open:
                self._results.steps = self._watcher.steps
                if not self._trains:  # a thread that trains looks at its own gradients
                    self._results.reads(func, args)
                if not types and (parts := self.in_parts(func, args, kwargs or {})):
                    return parts[0]
                return self._seen(func, args, super().__torch_dispatch__(func, types, args, kwargs))
        return func(*args, **(kwargs or {}))

    def _seen(self, func: Any, args: Args, out: Any) -> Any:
        try:
            self._looks_at(func, args, out)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the thread
            self._watcher.abandon(error)
        return out

    def _joins(self, args: Args) -> "Lane | None":
        """Return the lane in which an operation is part of the recorded step: it goes on with the graph of that step.

        A thread that has a backward of its own is apart.
        """
        self._trains = self._trains or _current_node() is not None
        try:
            return self._lane_for(args)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the thread
            self._watcher.abandon(error)
            return None

    def _lane_for(self, args: Args) -> "Lane | None":
        now = self._watcher.tape.now
        lanes = None if now is None or not torch.is_grad_enabled() else now.recorder.lanes
        if lanes is None or not lanes.open or threading.get_ident() in lanes.running:
            return None  # a job that has a lane of its own needs no other one
        if self._lane is None or self._lane.lanes is not lanes:
            joins = any(one.requires_grad and lanes.is_of_step(one) for one in tensors_of(args))
            self._lane = lanes.begins() if joins and not self._trains else None
            if self._lane is not None:
                self._lane.goes_on()
        return self._lane

    def _looks_at(self, func: Any, args: Args, out: Any) -> None:
        """Look at weights that are given and sent, at casts that outlast them, and at those of gradients."""
        thread, journal = self._watcher.thread, self._watcher.journal
        if out is NotImplemented:
            return
        _sends(self._watcher, func, args, out)
        region = thread.entered_at()
        if func is _COPY:
            self._watcher.updates.sent.copied(args[0])
        elif func is _CAST and region is None:  # within one, they are what the forward computes with
            self._watcher.updates.sent.cast(args[0], out)
        if self._kept is None:
            return
        if region is None:
            self._kept.clear()
        elif func is _CAST:
            self._kept.made(args[0], out)
        elif self._kept.outdated(args):
            self._kept = None
            journal.note_at(region, Kind.STALE_CAST, name=ELSEWHERE)


class Workers:
    """What threads of the script's own compute in half precision, and whether a recorded step went on from it."""

    def __init__(self) -> None:
        self.preparation, self.evaluation = Preparation(), Evaluation()
        self._results = Served()
        self._used = self._judged = False
        self._trains: Callable[[], bool] = bool  #: tells whether the running thread is the one that trains
        self._sends: Sends | None = None

    def begins(self, watcher: Any) -> OwnMode | None:
        """Return what follows a thread that is about to begin."""
        self._trains = lambda: bool(watcher.thread.runs)
        self._sends = partial(surely, watcher, partial(_sends, watcher))
        return _Listener(self._results, watcher) if self._results.open else None

    @property
    def heard(self) -> bool:
        """Whether such a thread has had numbers in half precision."""
        return self._results.heard

    @property
    def found(self) -> tuple[tuple[str, str, int, float], ...]:
        """What such a thread picks or reads after an overflow, the line of that, and how far it is off."""
        return () if self._results.found is None else (self._results.found,)

    def beside(self, tensor: torch.Tensor) -> Reference | None:
        """Return the reference of a tensor that such a thread has made, or the script before it trained."""
        found = self._results.known(tensor)
        self._used = self._used or (found is not None and self._trains())
        return self.preparation.beside(tensor) if found is None else found

    def joins(self, recording: "Compared") -> "Compared":
        """Let a step go on from what such threads have computed, and from what was there before training."""
        self.trains()
        heard = self.heard or self.preparation.heard
        recording.join(self.beside if heard else None, self._sends)
        return recording

    def recorded(self, recording: "Recording") -> None:
        """Take note of a step that was recorded: what the thread that trains had of others is judged in it."""
        if recording.compares and recording.before_calls:
            self._judged = self._judged or self._used
        self._used = False

    @property
    def missed(self) -> str:
        """Return what was computed and is in no recorded step, as far as anybody knows."""
        if self._judged or self._results.computed is None:
            return ""
        file, line = self._results.computed
        return f"{COMPUTED_ELSEWHERE}{f', first at {Path(file).name}:{line}' if line else ''}"

    def trains(self) -> None:
        """Take note that the script trains: what it computed without gradients ends here."""
        self.preparation.end()
        self.evaluation.end()

    def alone(self) -> None:
        """Let the thread that trains run alone from here on, where no step is recorded."""
        self.preparation.end()
        self.evaluation.close()

    def end(self) -> None:
        """Follow nothing any more."""
        self.alone()
        self._results.open = False
        self._results.clear()


def hear_workers(patches: Patches, watcher: Any) -> None:
    """Let a watcher follow the threads that begin from now on."""
    patches.put(threading.Thread, "_bootstrap_inner", partial(_followed, watcher))
    patches.before(torch, "compile", lambda *_, **__: watcher.tape.workers.end())


def _followed(watcher: Any, original: Original, self: threading.Thread) -> Any:
    mode = watcher.tape.workers.begins(watcher)
    others_begin(watcher.thread.ident)
    try:
        with nullcontext() if mode is None else mode:
            return original(self)
    finally:
        thread_ends()
