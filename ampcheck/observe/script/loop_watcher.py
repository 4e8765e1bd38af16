"""The watcher of a training loop: shown of its events, it decides which steps are recorded."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ampcheck.observe.execution import Execute, run_op
from ampcheck.observe.script.comparing import Compared
from ampcheck.observe.script.compiling import Compiler
from ampcheck.observe.script.gradient_rows import Compare
from ampcheck.observe.script.guard import guarded, not_seen_because
from ampcheck.observe.script.journal import Journal, dtype_name
from ampcheck.observe.script.optimizers import Turns, described, have_gradients, labels_of, parameters_of
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.roots import RootFinder, trains, within_backward
from ampcheck.observe.script.scaling.losses import SMALLEST_SCALE, behind, factor, is_scaled
from ampcheck.observe.script.scaling.scaled_by_hand import worst
from ampcheck.observe.script.scaling.scales import Attempt, ScaleWatch, Skips
from ampcheck.observe.script.scaling.scales_by_hand import ScaleByHand
from ampcheck.observe.script.state.half_averages import HalfAverages
from ampcheck.observe.script.state.leftover import Leftovers
from ampcheck.observe.script.state.never_stepped import NeverStepped
from ampcheck.observe.script.state.trained import Trained
from ampcheck.observe.script.state.update_watch import UpdateWatch
from ampcheck.observe.script.tape import Tape
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.observe.script.what_if import WhatIf
from ampcheck.values.loop import RETURNED, SEEDED, Kind, Loop
from ampcheck.values.settings import Schedule


class LoopWatcher:
    """Follows a training loop through its events; the hooks of `hooks` call it."""

    def __init__(
        self,
        schedule: Schedule,
        compare: Compare,
        execute: Callable[[], Execute] = lambda: run_op,
        on_step: Callable[[Any], None] = lambda _: None,
        what_if: WhatIf | None = None,
    ) -> None:
        """Begin before the first step; `execute` says how operations are run, `shown` hears of every step."""
        self.journal = Journal()
        self.tape = Tape(schedule, compare, execute, what_if, self.used)
        self.scales, self.updates = ScaleWatch(self.tape.name), UpdateWatch(self.tape.name)
        self.trained = Trained(self.tape.name, self.tape.know)
        self.skips, self.leftovers = Skips(), Leftovers()
        self.error: BaseException | None = None  #: what ended the script
        self.thread = WatchedThread(self.journal.joins)
        self.roots = RootFinder(self.called, self.thread)
        self.within: set[tuple[int, int, str]] = set()  #: methods of scalers that run, by thread
        self.not_seen: dict[str, int] = {}
        self.compiler, self.hand = Compiler(), ScaleByHand(self.not_seen)
        self.steps = self.backwards = 0
        self.children = 0  #: processes that were started
        self.started: Callable[[Any], None] = lambda _: None  #: hears of them
        self.asked = False  #: the script wanted a region of autocast, whether or not it was given one
        self.off: weakref.WeakSet[Any] = weakref.WeakSet()  #: regions of autocast that torch has switched off
        self._on_step = on_step
        self._scaler_step: Attempt | None = None
        self._owners: dict[int, str] = {}
        self.turns = Turns()
        self._before: tuple[torch.Tensor, list[torch.Tensor]] | None = None
        self._scales = False  #: a loss has been scaled before
        self.broken = False  #: watching failed, and the script goes on alone
        self.capturing = False  #: the script captures a CUDA graph, which nothing of ours may be part of
        self.averages = HalfAverages(self.thread, self.trained)  #: changes beside training
        self.averages.shows(self.tape.looks.early, self.tape.workers.preparation.lost)
        self.unstepped = NeverStepped(self.averages, self.journal)
        self._stepped_within = False  #: an optimizer has stepped within the backward that is running
        self._pending = False  #: gradients were computed and no optimizer has stepped since
        self._heard = False  #: a module that trains was called since, or nobody listened

    @guarded
    def begin(self) -> None:
        """Begin to watch."""
        self.averages.begin()
        self.roots.listen()
        self.compiler.wait(self._wanted())

    @guarded
    def end(self) -> None:
        """Stop watching; an open recording is kept if it saw a backward."""
        self._end_recording()
        self.roots.stop_listening()
        self.compiler.forget()
        self.scales.settle()
        self.unstepped.end(self.backwards)
        self.updates.end()
        self.journal.turn()
        self.tape.end()
        self.tape.recorded = self.tape.looks.carried.worse_off(self.tape.recorded)
        self.averages.end(self.steps)

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take note of what ended the script."""
        self.error = error
        self.tape.raised(error)

    @guarded
    def called(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of an outermost module call that is about to begin."""
        if self._pending and not self._owners and torch.is_grad_enabled():
            self._end_recording()
            self.stepped()  # weights that are updated by hand: a forward after a backward is a new step
        self._asked_again()
        label = self.journal.label(module, "model") if self.tape.root(module).owns else ""
        self.journal.note(Kind.FORWARD, label, name=type(module).__name__, training=module.training)
        self._heard = self._heard or (bool(label) and trains())
        if self.tape.now is not None or (trains() and label and self.turns.fresh and self._wanted()):
            self.tape.follow(module, args, kwargs, self.steps)
        elif label and not self._wanted() and self._owners:
            self.roots.stop_listening()

    def _end_recording(
        self,
        parameters: Iterable[torch.Tensor] | None = None,
        used: Iterable[torch.Tensor] = (),
        *,
        label: str | None = None,
    ) -> None:
        """End the recording, or go on with it where autograd runs or another optimizer has its turn still.

        `label` is the optimizer that is about to step; '' stands for gradients that are used before that.
        """
        if within_backward():  # where what is taken away now would come back
            self.tape.look(used)
        elif self.tape.now is not None:
            if label is not None and self.turns.waits_for_others(label, self.steps):
                self.tape.look(used if parameters is None else parameters)
                return
            self.tape.now.last = self.steps
            self.tape.close(parameters, used)
            self.scales.settle()

    def _asked_again(self) -> None:
        """End the recording of a step whose optimizer asks its closure once more: LBFGS does, SAM does."""
        if self.journal.inside.startswith("optimizer") and self.tape.again(self.steps):
            self._end_recording()

    def _wanted(self) -> bool:
        return self.tape.wants(self.steps)

    @guarded
    def compiles(self) -> None:
        """Take note of something that is to be compiled, when it is called at the latest."""
        self.averages.abandon()
        self.compiler.begins()
        self.compiler.wait(self._wanted())

    def backward(self, tensors: Any, seeds: Any = (), name: str = "") -> torch.Tensor | None:
        """Take note of a backward that is about to begin; return what it is to start from, None for the usual.

        `seeds` are what the script lets it start from; with a name its gradients are returned and do not add up.
        """
        if self.tape.what_if is not None:
            self.tape.what_if.leave()
        if self.averages.following and self.thread.runs and not self.averages.of_pass:
            self.averages.pause()
        self.averages.passes.regions = 0
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        loss = first if isinstance(first, torch.Tensor) else None  # a pipeline's stage has nodes
        scaled = self._scales and isinstance(loss, torch.Tensor) and is_scaled(loss)
        dtype = "" if loss is None else dtype_name(loss.dtype)
        whole = loss is not None and loss.numel() == 1
        by = factor(loss, next(iter(seeds), None)) if whole and not scaled else 1.0
        hand = by >= SMALLEST_SCALE or (by != 1.0 and self.hand.has_fallen_to(by, loss))
        name = name or (behind(loss) if whole or loss is None else SEEDED)
        self.journal.note(Kind.BACKWARD, scaled=scaled, dtype=dtype, name=name, by_hand=hand)
        self.backwards, self._pending, self.hand.returns = self.backwards + 1, True, name == RETURNED
        if scaled and self.thread.runs:
            self.leftovers.backward_begins()
        if hand and (left := self.hand.multiplied(self.steps, by, loss, self.tape.models)):
            self.journal.note(Kind.GROWN, name=left, targets=labels_of(self.hand.spoilt, self._owners))
        given = name == SEEDED and self._scales
        return self.tape.backward(loss if whole else None, scaled=scaled or given, by=by)

    @guarded
    def child(self, process: Any) -> None:
        """Take note of a process that is about to start."""
        self.children += 1
        self.started(process)

    @guarded
    def leaves(self) -> None:
        """Take note of an object's method that has returned."""
        self.journal.leave()

    def backward_ends(self) -> None:
        """Take note of a backward that is over, and of a step that was taken within it."""
        if self.averages.following:
            self.averages.resume()
        passes = self.averages.passes
        passes.backwards += 1
        if passes.backwards >= passes.begins:
            self.averages.goes_on(passes.backwards)
        if grown := self.leftovers.backward_ends():
            self.journal.note(Kind.GROWN, targets=grown)
        self.tape.backward_ends()
        if passes.backwards >= passes.many and self.unstepped.ran(self.tape.left_gradients):
            self._end_recording()  # nothing finite comes of this step any more
        if self._stepped_within:
            self._stepped_within = False
            self.turns.end()  # these do not step in turn
            self.tape.in_turn = 1
            self._end_recording()
            self.stepped()

    def seed_ends(self) -> None:
        """Give the script the gradients that FP32 has; whatever happened to the watch, never scaled ones."""
        what_if, recording = self.tape.what_if, self.tape.now
        if what_if is None:
            return
        try:
            what_if.give_back(recording if isinstance(recording, Compared) and not self.broken else None)
        except Exception as error:  # noqa: BLE001  # of our own: the script goes on
            self.abandon(error)
            what_if.give_back(None)

    @guarded
    def used(self, kind: Kind, name: str, parameters: list[torch.Tensor]) -> None:
        """Take note of gradients that are measured or limited."""
        now, whose = self.tape.now, labels_of(parameters, self._owners)
        holds = bool(self.hand.clipping) or (now is not None and now.multiplied.holds(parameters))
        self.journal.note(kind, name=name, targets=whose, by_hand=holds, limit=self.hand.limit)

    @guarded
    def owns(self, optimizer: Any, parameters: Iterable[Any]) -> str:
        """Remember which optimizer has which parameters; return its label."""
        label = self.journal.label(optimizer, "optimizer")
        if self.turns.is_new(label, optimizer, self.steps) and self.steps > 1:
            self.tape.look_at(self.steps + 1)  # it may be treated otherwise than those before it
        self.tape.in_turn = self.turns.count
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor):
                self._owners[id(parameter)] = label
        return label

    def step_begins(self, optimizer: Any) -> None:
        """Take note of an optimizer that is about to change the weights."""
        label, parameters = self.journal.label(optimizer, "optimizer"), parameters_of(optimizer)
        if not self.backwards:  # gradients may be of other threads, or of copies
            self._pending = have_gradients(parameters)
        if not self.journal.things[label].settings:
            self.owns(optimizer, parameters)
            self.journal.describe(label, **described(optimizer))
        now = self.tape.now if self._scaler_step is None else None
        divided, name = (False, "") if now is None else now.before_step(parameters)
        if self._scaler_step is not None:
            self._scaler_step.reached = True
        self._end_recording(used=parameters, label=label)
        if self.tape.delivery.runs:
            self.tape.arrives(parameters)
        self.tape.pause()
        self.trained.stepped(label, parameters)
        self.updates.begins(label, optimizer, parameters)
        if self.hand.clipped_some:
            with unseen():
                divided = self.hand.divided(parameters) or divided
        self.journal.note(Kind.STEP, label, name=name, by_hand=divided)
        self.journal.enter(label)

    @guarded
    def step_ends(self) -> None:
        """Take note of an optimizer that has changed the weights."""
        label = self.journal.leave()
        self.updates.ends(label)
        if self._scaler_step is None and self.tape.now is not None:
            self.tape.resume()
        if within_backward():
            self._stepped_within = True
            return
        self._end_recording(label=label)
        if self._scaler_step is None:
            self.stepped(label)

    def stepped(self, label: str = "") -> None:
        """Count an update by an optimizer, and listen for the next step if that is to be recorded."""
        unheard, self._pending = self._pending and not (self._heard and self.backwards), False
        self.tape.pace.step_ends()
        if self.tape.delivery.mode is not None:
            self.tape.delivery.end()
        self.turns.taken(label, self.steps)
        self.steps += 1
        self.averages.step_ends(self.steps)
        self.journal.updated()
        self._on_step(self)
        if unheard and not self.tape.before_calls:
            self.tape.unheard(self.steps)
        wanted = self._wanted()
        self._heard = not wanted
        self.tape.pace.step_begins(bare=not wanted)
        self.compiler.wait(wanted)
        (self.roots.listen if wanted or not self._owners else self.roots.stop_listening)()
        if wanted and self.turns.fresh:
            self.tape.begins(self.steps, self.turns.parameters)

    @guarded
    def zeroed(self, owner: Any, family: str) -> None:
        """Take note of gradients that are cleared."""
        self._asked_again()
        self.leftovers.zeroed(label := self.journal.label(owner, family))
        if self._pending:
            self.hand.clears(owner, unused=self.turns.count <= 1 and not self.journal.inside)
        self.journal.note(Kind.ZERO_GRAD, label)

    @guarded
    def note(
        self, kind: Kind, thing: Any = None, family: str = "", *, within: bool = False, **said: str
    ) -> None:
        """Take note of something an object does; with `within` what follows happens in its method."""
        label = self.journal.label(thing, family) if thing is not None else ""
        self.journal.note(kind, label, **said)
        if within:
            self.journal.enter(label)

    def abandon(self, error: Exception) -> None:
        """Stop watching because of an error of our own."""
        self.broken = True
        self.not_seen[not_seen_because(error)] = 1
        self.roots.stop_listening()
        self.compiler.free()
        self.averages.abandon()
        self.tape.discard()

    def loop(self) -> Loop:
        """Return what was seen of the loop."""
        things, scales, first = self.journal.things.values(), self.scales.events, dict(self.scales.first)
        known = [one for one in self.tape.recorded if not one.overflowed]  # no division shows in others
        scaling = worst((*(one.scaling for one in known or self.tape.recorded), self.hand.undivided))
        if (scaling.known or self.hand.is_dynamic) and not first:
            first, scales = self.hand.first(), [*self.hand.events()]
        full = tuple(recorded.step for recorded in self.tape.recorded if recorded.beside is not None)
        seen = (*self.journal.rounds(), tuple(things), tuple(scales), first, self.steps, full)
        never = self.scales.only_in_skips(self.trained.elements())
        return Loop(*seen, children=self.children, scaling=scaling.words, untrained=never)
