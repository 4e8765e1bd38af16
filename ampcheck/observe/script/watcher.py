"""The watcher of a training script: told of its events, it decides which steps are recorded."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.loop import Kind, Loop
from ampcheck.observe.recorder import Execute, run_op
from ampcheck.observe.script.journal import Journal
from ampcheck.observe.script.losses import behind, is_scaled, mark_scaled
from ampcheck.observe.script.recording import Compare, Recorded, Recording
from ampcheck.observe.script.roots import RootFinder, name_in_script
from ampcheck.observe.script.scales import ScaleWatch
from ampcheck.observe.structure import named_modules, own_parameters
from ampcheck.settings import Schedule

_OTHER_LABEL = "optimizer 0"


@dataclass(slots=True)
class _Update:
    """One call of scaler.step: which optimizer it is about, and whether that was reached."""

    label: str
    reached: bool = False


@dataclass(frozen=True, slots=True)
class _Root:
    """An outermost module."""

    module: Callable[[], torch.nn.Module | None]
    name: str
    owns: bool  #: it has parameters


class Watcher:
    """Follows a training loop through its events; the hooks of `hooks` call it."""

    def __init__(
        self,
        schedule: Schedule,
        compare: Compare,
        execute: Callable[[], Execute] = lambda: run_op,
        told: Callable[["Watcher"], None] = lambda _: None,
    ) -> None:
        """Begin before the first step; `execute` says how operations are run, `told` hears of every step."""
        self.schedule = schedule
        self.journal = Journal()
        self.scales = ScaleWatch(self.name)
        self.roots = RootFinder(self.called)
        self.recorded: list[Recorded] = []
        self.not_seen: dict[str, int] = {}
        self.steps = 0
        self.backwards = 0
        self.children = 0
        #: What regions of autocast were asked for, whether or not they were given: (device, dtype) -> place.
        self.asked: dict[tuple[str, str], str] = {}
        self._compare, self._execute, self._told = compare, execute, told
        self._recording: Recording | None = None
        self._names: dict[int, tuple[Any, str, str]] = {}
        self._known: dict[int, _Root] = {}
        self._scaler_step: _Update | None = None
        self._owners: dict[int, str] = {}
        self._pending = False  #: gradients were computed and no optimizer has stepped since

    # -- modules

    def begin(self) -> None:
        """Begin to watch."""
        self.roots.listen()

    def end(self) -> None:
        """Stop watching; an open recording is kept if it saw a backward."""
        self._close()
        self.roots.deafen()
        self.scales.settle()
        self.journal.turn()

    def called(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of an outermost module call that is about to begin."""
        root = self._adopt(module)
        if self._pending and not self._owners and torch.is_grad_enabled():
            self._close()
            self.stepped()  # weights that are updated by hand: a forward after a backward is a new step
        label = self.journal.label(module, "model") if root.owns else ""
        self.journal.note(Kind.FORWARD, label, name=type(module).__name__, training=module.training)
        recording = self._recording
        opens = recording is None and torch.is_grad_enabled() and label and self._wanted()
        if opens:
            recording = self._open()
        if recording is not None:
            recording.recorder.tracker.adopt(module, root.name)
            if opens:
                recording.recorder.tracker.call(module, args, kwargs)
            if recording.too_long():
                self._give_up("steps too long to be recorded: nothing updated the weights")
        elif label and not self._wanted() and self._owners:
            self.roots.deafen()

    def _adopt(self, module: torch.nn.Module) -> "_Root":
        known = self._known.get(id(module))
        if known is not None and known.module() is module:
            return known
        name = name_in_script(module)
        owned = [
            (f"{name}.{path}" if path else name, own, parameter)
            for path, part in named_modules(module)
            for own, parameter in own_parameters(part)
        ]
        for layer, own, parameter in owned:
            self._names.setdefault(id(parameter), (weakref.ref(parameter), layer, own))
        found = self._known[id(module)] = _Root(weakref.ref(module), name, owns=bool(owned))
        return found

    def name(self, parameter: torch.Tensor) -> tuple[str, str]:
        """Return the layer that owns a parameter, and the parameter's full name."""
        known = self._names.get(id(parameter))
        if known is None or known[0]() is not parameter:
            return "", f"a parameter of shape {tuple(parameter.shape)}"
        return known[1], f"{known[1]}.{known[2]}"

    # -- recording

    def _wanted(self) -> bool:
        if len(self.recorded) >= self.schedule.most:
            return False
        return self.schedule.wants(self.steps, max(1, len(set(self._owners.values()))))

    def _open(self) -> Recording:
        self._recording = Recording(self.steps, self._execute())
        self._recording.open()
        return self._recording

    def _close(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """End the recorded step, before gradients are changed or used."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        recording.close()
        if not recording.backwards:
            return
        wanted = None if parameters is None else {id(parameter) for parameter in parameters}
        held = [
            item
            for item in recording.recorder.tracker.parameters()
            if wanted is None or id(item[2]) in wanted
        ]
        recording.gradients(held, self._compare)
        self.recorded.append(recording.finish())
        self.scales.settle()

    def _give_up(self, why: str) -> None:
        if self._recording is not None:
            self._recording.close()
            self._recording = None
            self.not_seen[why] = self.not_seen.get(why, 0) + 1

    # -- gradients

    def backward(self, tensors: Any) -> None:
        """Take note of a backward that is about to begin."""
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        scaled = isinstance(loss, torch.Tensor) and is_scaled(loss)
        said = (
            {"dtype": str(loss.dtype).removeprefix("torch."), "name": behind(loss)}
            if loss is not None
            else {}
        )
        self.journal.note(Kind.BACKWARD, scaled=scaled, **said)
        self.backwards += 1
        self._pending = True
        if self._recording is not None:
            self._recording.backwards += 1
            if isinstance(loss, torch.Tensor) and not scaled:
                self._recording.keep_loss(loss)

    def changed(self, kind: Kind, name: str, parameters: list[torch.Tensor]) -> None:
        """Take note of gradients about to be clipped."""
        targets = {self._owners.get(id(parameter), _OTHER_LABEL) for parameter in parameters}
        self._close()
        self.journal.note(kind, name=name, targets=tuple(sorted(targets - {_OTHER_LABEL})))

    # -- optimizers

    def owns(self, optimizer: Any, parameters: Iterable[Any]) -> str:
        """Remember which optimizer has which parameters; return its label."""
        label = self.journal.label(optimizer, "optimizer")
        for parameter in parameters:
            if isinstance(parameter, torch.Tensor):
                self._owners[id(parameter)] = label
        return label

    def step_begins(self, optimizer: Any) -> None:
        """Take note of an optimizer that is about to change the weights."""
        label = self.owns(optimizer, _parameters(optimizer))
        if self._scaler_step is not None:
            self._scaler_step.reached = True
        self._close()
        self.journal.note(Kind.STEP, label)
        self.journal.enter(label)
        self.journal.describe(label, **_described(optimizer))

    def step_ends(self) -> None:
        """Take note of an optimizer that has changed the weights."""
        self.journal.leave()
        self._close()
        if self._scaler_step is None:
            self.stepped()

    def stepped(self) -> None:
        """Count an update, and listen for the next step if that is to be recorded."""
        self._pending = False
        self.steps += 1
        self.journal.updated()
        self._told(self)
        if self._wanted() or not self._owners:
            self.roots.listen()
        else:
            self.roots.deafen()

    def zeroed(self, owner: Any, family: str) -> None:
        """Take note of gradients that are cleared."""
        label = self.journal.label(owner, family)
        self.journal.note(Kind.ZERO_GRAD, label)

    # -- autocast

    def asks(self, device: str, dtype: torch.dtype | None) -> None:
        """Take note of an autocast region that the script wants."""
        wanted = dtype or (torch.float16 if device == "cuda" else torch.get_autocast_dtype(device))
        file, line = self.journal.place()
        key = (device, str(wanted).removeprefix("torch."))
        self.asked.setdefault(key, f"{file}:{line}" if file else "")

    # -- scalers

    def scale(self, scaler: Any, outputs: Any) -> None:
        """Take note of a loss about to be scaled."""
        label = self.journal.label(scaler, "scaler")
        loss = outputs if isinstance(outputs, torch.Tensor) else None
        self.journal.note(Kind.SCALE, label, dtype="" if loss is None else str(loss.dtype)[6:])
        if self._recording is not None and loss is not None:
            self._recording.keep_loss(loss)

    def scaled(self, scaler: Any, outputs: Any) -> None:
        """Remember that this loss was scaled."""
        if self._recording is not None and scaler.is_enabled() and scaler._scale is not None:
            self._recording.scaled_by(scaler._scale)
        for tensor in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
            if isinstance(tensor, torch.Tensor):
                mark_scaled(tensor)

    def unscale(self, scaler: Any, optimizer: Any) -> None:
        """Take note of gradients about to be unscaled."""
        label = self.owns(optimizer, _parameters(optimizer))
        self._close(_parameters(optimizer))
        self.journal.note(Kind.UNSCALE, self.journal.label(scaler, "scaler"), targets=(label,))

    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None:
        """Take note of a scaler that is about to step an optimizer, or to skip it."""
        label = self.owns(optimizer, _parameters(optimizer))
        self._close(_parameters(optimizer))
        own = self.journal.label(scaler, "scaler")
        self.journal.note(Kind.SCALER_STEP, own, targets=(label,))
        self.journal.enter(own)
        self._scaler_step = _Update(label)

    def scaler_step_ends(self, scaler: Any, optimizer: Any) -> None:
        """Take note of whether the step was skipped."""
        self.journal.leave()
        update, self._scaler_step = self._scaler_step, None
        if update is not None and scaler.is_enabled():
            found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
            # On a CPU reading costs nothing; elsewhere a step that was reached may be a fused one, skipped inside.
            if not update.reached or any(value.is_cpu and float(value) for value in found):
                self.scales.skipped(update.label, _parameters(optimizer))
        self.stepped()

    def update(self, scaler: Any, run: Callable[[], Any]) -> Any:
        """Run scaler.update and take note of what it did."""
        label = self.journal.label(scaler, "scaler")
        self.journal.note(Kind.UPDATE, label)
        if not scaler.is_enabled() or scaler._scale is None:
            return run()
        before = scaler._scale.detach().clone()
        states = scaler._per_optimizer_states.values()
        found = [value.clone() for state in states for value in state["found_inf_per_device"].values()]
        out = run()
        self.scales.updated(max(0, self.steps - 1), label, before, scaler._scale, found)
        return out

    def loop(self) -> Loop:
        """Return what was seen of the loop."""
        rounds, order = self.journal.rounds()
        return Loop(
            rounds=rounds,
            order=order,
            things=tuple(self.journal.things.values()),
            scales=tuple(self.scales.events),
            first_scales=dict(self.scales.first),
            steps=self.steps,
            recorded=tuple(recorded.step for recorded in self.recorded),
            children=self.children,
        )


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def _described(optimizer: Any) -> dict[str, str | float | bool]:
    """Return what rules ask of an optimizer: the dtypes it updates, and whether it is fused."""
    dtypes = {
        str(p.dtype).removeprefix("torch.") for p in _parameters(optimizer) if isinstance(p, torch.Tensor)
    }
    fused = any(bool(group.get("fused")) for group in optimizer.param_groups)
    return {"dtypes": " ".join(sorted(dtypes)), "fused": fused}
