"""The watcher of a training script: told of its events, it decides which steps are recorded."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ampcheck.loop import GIVEN, Kind, Loop
from ampcheck.observe.recorder import Execute, run_op
from ampcheck.observe.script.comparing import Compare, Compared
from ampcheck.observe.script.compiling import Compiler
from ampcheck.observe.script.guard import guarded, told
from ampcheck.observe.script.journal import Journal, dtype_name
from ampcheck.observe.script.losses import behind, by_hand, is_scaled, mark_scaled
from ampcheck.observe.script.optimizers import described, parameters_of
from ampcheck.observe.script.roots import RootFinder, within_backward
from ampcheck.observe.script.scales import Attempt, ScaleWatch, about_to_update, overflowed
from ampcheck.observe.script.tape import Tape
from ampcheck.observe.script.what_if import WhatIf
from ampcheck.settings import Schedule

_OTHER_LABEL = "optimizer 0"


class Watcher:
    """Follows a training loop through its events; the hooks of `hooks` call it."""

    def __init__(
        self,
        schedule: Schedule,
        compare: Compare,
        execute: Callable[[], Execute] = lambda: run_op,
        told: Callable[["Watcher"], None] = lambda _: None,
        what_if: WhatIf | None = None,
    ) -> None:
        """Begin before the first step; `execute` says how operations are run, `told` hears of every step."""
        self.journal = Journal()
        self.tape = Tape(schedule, compare, execute, what_if, self.used)
        self.scales = ScaleWatch(self.tape.name)
        self.roots = RootFinder(self.called)
        self.compiler = Compiler()
        self.not_seen: dict[str, int] = {}
        self.steps = 0
        self.backwards = 0
        self.children = 0  #: processes that were started
        self.started: Callable[[Any], None] = lambda _: None  #: hears of them
        self.asked = False  #: the script wanted a region of autocast, whether or not it was given one
        #: Regions of autocast that were asked for and that torch has switched off.
        self.off: weakref.WeakSet[Any] = weakref.WeakSet()
        self._told = told
        self._scaler_step: Attempt | None = None
        self._owners: dict[int, str] = {}
        self._optimizers: set[str] = set()
        self._before: tuple[torch.Tensor, list[torch.Tensor]] | None = None
        self._scales = False  #: a loss has been scaled before
        self.broken = False  #: watching failed, and the script goes on alone
        self._stepped_within = False  #: an optimizer has stepped within the backward that is running
        self._pending = False  #: gradients were computed and no optimizer has stepped since

    def begin(self) -> None:
        """Begin to watch."""
        self.roots.listen()
        self.compiler.wait(self._wanted())

    @guarded
    def end(self) -> None:
        """Stop watching; an open recording is kept if it saw a backward."""
        self._end_recording()
        self.roots.deafen()
        self.compiler.forget()
        self.scales.settle()
        self.journal.turn()

    @guarded
    def raised(self, error: BaseException) -> None:
        """Take note of what ended the script."""
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
        begins = torch.is_grad_enabled() and bool(label) and self._wanted()
        if begins or self.tape.now is not None:
            self.tape.follow(module, args, kwargs, self.steps)
        elif label and not self._wanted() and self._owners:
            self.roots.deafen()

    def _end_recording(
        self, parameters: Iterable[torch.Tensor] | None = None, used: Iterable[torch.Tensor] = ()
    ) -> None:
        if within_backward():  # where what is taken away now would come back
            self.tape.look(used)
        elif self.tape.now is not None:
            self.tape.close(parameters)
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
        self.compiler.begins()
        self.compiler.wait(self._wanted())

    # -- gradients

    @guarded
    def backward(self, tensors: Any, name: str = "") -> torch.Tensor | None:
        """Take note of a backward that is about to begin; return what it is to start from, None for the usual.

        With a name its gradients are returned and do not add up.
        """
        what_if = self.tape.what_if
        if what_if is not None:
            what_if.leave()
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        scaled = self._scales and isinstance(loss, torch.Tensor) and is_scaled(loss)
        dtype = "" if loss is None else dtype_name(loss.dtype)
        by = not scaled and by_hand(loss)
        self.journal.note(Kind.BACKWARD, scaled=scaled, dtype=dtype, name=name or behind(loss), by_hand=by)
        self.backwards += 1
        self._pending = True
        return self.tape.backward(loss, scaled=scaled)

    @guarded
    def child(self, process: Any) -> None:
        """Take note of a process that is about to start."""
        self.children += 1
        self.started(process)

    @guarded
    def leaves(self) -> None:
        """Take note of an object's method that has returned."""
        self.journal.leave()

    @guarded
    def trains(self, inputs: Any) -> bool:
        """Tell whether an optimizer has one of these tensors."""
        given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        return not self._owners.keys().isdisjoint(map(id, given))

    @guarded
    def backward_ends(self) -> None:
        """Take note of a backward that is over, and of a step that was taken within it."""
        if self._stepped_within:
            self._stepped_within = False
            self._optimizers.clear()  # these do not step in turn
            self.tape.in_turn = 1
            self._end_recording()
            self.stepped()

    @guarded
    def seed_ends(self) -> None:
        """Give the script the gradients that FP32 has."""
        if self.tape.what_if is not None and isinstance(self.tape.now, Compared):
            self.tape.what_if.give_back(self.tape.now)

    @guarded
    def changed(self, kind: Kind, name: str, parameters: list[torch.Tensor]) -> None:
        """Take note of gradients about to be clipped."""
        self._end_recording(used=parameters)
        self.used(kind, name, parameters)

    @guarded
    def used(self, kind: Kind, name: str, parameters: list[torch.Tensor]) -> None:
        """Take note of gradients that are measured or limited."""
        targets = {self._owners.get(id(parameter), _OTHER_LABEL) for parameter in parameters}
        self.journal.note(kind, name=name, targets=tuple(sorted(targets - {_OTHER_LABEL})))

    # -- optimizers

    @guarded
    def owns(self, optimizer: Any, parameters: Iterable[Any]) -> str:
        """Remember which optimizer has which parameters; return its label."""
        label = self.journal.label(optimizer, "optimizer")
        self._optimizers.add(label)
        self.tape.in_turn = len(self._optimizers)
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor):
                self._owners[id(parameter)] = label
        return label

    @guarded
    def step_begins(self, optimizer: Any) -> None:
        """Take note of an optimizer that is about to change the weights."""
        label = self.journal.label(optimizer, "optimizer")
        if not self.journal.things[label].settings:
            self.owns(optimizer, parameters_of(optimizer))
            self.journal.describe(label, **described(optimizer))
        if self._scaler_step is not None:
            self._scaler_step.reached = True
        self._end_recording(used=parameters_of(optimizer))
        self.journal.note(Kind.STEP, label)
        self.journal.enter(label)

    @guarded
    def step_ends(self) -> None:
        """Take note of an optimizer that has changed the weights."""
        self.journal.leave()
        if within_backward():
            self._stepped_within = True
            return
        self._end_recording()
        if self._scaler_step is None:
            self.stepped()

    def stepped(self) -> None:
        """Count an update, and listen for the next step if that is to be recorded."""
        self._pending = False
        self.steps += 1
        self.journal.updated()
        self._told(self)
        wanted = self._wanted()
        self.compiler.wait(wanted)
        if wanted or not self._owners:
            self.roots.listen()
        else:
            self.roots.deafen()

    @guarded
    def zeroed(self, owner: Any, family: str) -> None:
        """Take note of gradients that are cleared."""
        self._asked_again()
        self.journal.note(Kind.ZERO_GRAD, self.journal.label(owner, family))

    # -- scalers

    @guarded
    def scale(self, scaler: Any, outputs: Any) -> None:
        """Take note of a loss about to be scaled."""
        label = self.journal.label(scaler, "scaler")
        loss = outputs if isinstance(outputs, torch.Tensor) else None
        self.journal.note(Kind.SCALE, label, dtype="" if loss is None else str(loss.dtype)[6:])
        if self.tape.now is not None and loss is not None:
            self.tape.now.keep_loss(loss)

    @guarded
    def scaled(self, scaler: Any, outputs: Any) -> None:
        """Remember that this loss was scaled."""
        asked = self.journal.things[self.journal.label(scaler, "scaler")].settings
        if asked.get("enabled") is False:  # by the script, not for want of a GPU
            return
        self._scales = True
        if self.tape.now is not None and scaler.is_enabled() and scaler._scale is not None:
            self.tape.now.scaled_by(scaler._scale)
        for tensor in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
            if isinstance(tensor, torch.Tensor):
                mark_scaled(tensor)

    @guarded
    def made(self, scaler: Any, asked: dict[str, Any]) -> None:
        """Take note of a scaler and of what was asked of it."""
        label = self.journal.label(scaler, "scaler")
        known = {name: value for name, value in asked.items() if isinstance(value, (str, float, int))}
        self.journal.describe(label, **known, live=bool(scaler._enabled))

    @guarded
    def unscale(self, scaler: Any, optimizer: Any) -> None:
        """Take note of gradients about to be unscaled."""
        if self._scaler_step is not None:  # from within the scaler's own step
            return
        label = self.owns(optimizer, parameters_of(optimizer))
        self._end_recording(parameters_of(optimizer))
        self.journal.note(Kind.UNSCALE, self.journal.label(scaler, "scaler"), targets=(label,))

    @guarded
    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None:
        """Take note of a scaler that is about to step an optimizer, or to skip it."""
        label = self.owns(optimizer, parameters_of(optimizer))
        self._end_recording(parameters_of(optimizer))
        own = self.journal.label(scaler, "scaler")
        self.journal.note(Kind.SCALER_STEP, own, targets=(label,))
        self.journal.enter(own)
        self._scaler_step = Attempt(label)

    @guarded
    def scaler_step_ends(self, scaler: Any, optimizer: Any) -> None:
        """Take note of whether the step was skipped."""
        self.journal.leave()
        update, self._scaler_step = self._scaler_step, None
        # A step that was reached may be a fused one, skipped inside.
        if update and scaler.is_enabled() and (not update.reached or overflowed(scaler, optimizer)):
            self.scales.skipped(update.label, parameters_of(optimizer))
        self.stepped()

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
    def note(
        self, kind: Kind, thing: Any = None, family: str = "", *, within: bool = False, **said: str
    ) -> None:
        """Take note of something an object does; with `within` what follows happens in its method."""
        label = self.journal.label(thing, family) if thing is not None else ""
        self.journal.note(kind, label, **said)
        if within:
            self.journal.enter(label)

    def give_in(self, error: Exception) -> None:
        """Stop watching because of an error of our own."""
        self.broken = True
        self.not_seen[told(error)] = 1
        self.roots.deafen()
        self.compiler.free()
        self.tape.discard()

    def loop(self) -> Loop:
        """Return what was seen of the loop."""
        things, scales = tuple(self.journal.things.values()), tuple(self.scales.events)
        full = tuple(recorded.step for recorded in self.tape.recorded if recorded.beside is not None)
        first = dict(self.scales.first)
        return Loop(*self.journal.rounds(), things, scales, first, self.steps, full, self.children)
