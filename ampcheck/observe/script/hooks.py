"""Where a watcher hears of what a script does: torch's entry points, wrapped while it watches.

None of them is called for an operation: between recorded steps a step costs a dozen calls.
"""

import functools
import multiprocessing.process
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, cast

import torch
from torch.amp import autocast_mode, grad_scaler
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampcheck.observe.model import gradients
from ampcheck.observe.model.modules import ModuleTracker
from ampcheck.observe.patches import Original, Patches, put_in_place
from ampcheck.observe.script import open_watches
from ampcheck.observe.script.compiling import hooks_of_others, let_modes_stay
from ampcheck.observe.script.cuda.graphs import hear_graphs
from ampcheck.observe.script.data_sets import hear_loaders
from ampcheck.observe.script.guard import surely
from ampcheck.observe.script.journal import dtype_name
from ampcheck.observe.script.preparation import hear_graphs_made
from ampcheck.observe.script.roots import RootFinder
from ampcheck.observe.script.scaling import scaler_hooks
from ampcheck.observe.script.schedules import schedule
from ampcheck.observe.script.watcher import Watcher
from ampcheck.observe.script.workers import hear_workers
from ampcheck.observe.warned import Warned
from ampcheck.values.loop import RETURNED, UNCACHED, Kind

_current_node = torch._C._current_autograd_node
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "clip_grad_norm")
#: Parts of the names that overflows are asked for by.
_OVERFLOWS = ("found_inf", "overflow")


class Hooks:
    """A watcher's ears; `close` takes all of them away."""

    deepspeed = scaler_hooks.MODULE  #: what is to be imported before `hear_deepspeed`

    def __init__(self, watcher: Watcher) -> None:
        self._ear = _Ear(watcher)
        self._own = watcher
        watcher = self._watcher = cast("Watcher", self._ear)
        self._patches, self._kinds = Patches(), set[type]()
        self._handles: list[Any] = [Warned()]
        self.open = True  #: the watcher still hears
        put, before = self._patches.put, self._patches.before
        self._handles.append(register_optimizer_step_pre_hook(_using(watcher, "step_begins")))
        self._handles.append(register_optimizer_step_post_hook(lambda *_: watcher.step_ends()))
        put(torch.autograd, "_engine_run_backward", functools.partial(_engine, watcher))
        put(Optimizer, "add_param_group", functools.partial(_add_group, watcher))
        put(Optimizer, "load_state_dict", functools.partial(_loads, watcher))
        put(torch.nn.Module, "load_state_dict", functools.partial(_model_loads, watcher))
        before(Optimizer, "state_dict", _noting(watcher, Kind.SAVE_OPTIMIZER))
        before(torch.nn.Module, "state_dict", lambda *_, **how: "destination" in how or watcher.saves_model())
        before(Optimizer, "zero_grad", _using(watcher, "zeroed", "optimizer"))
        before(torch.nn.Module, "zero_grad", _using(watcher, "zeroed", "model"))
        before(torch.nn.Module, "train", functools.partial(_trains, watcher))
        for scheduler in {value for value in vars(lr_scheduler).values() if isinstance(value, type)}:
            if issubclass(scheduler, lr_scheduler.LRScheduler) and "step" in vars(scheduler):
                put(scheduler, "step", functools.partial(schedule, watcher))
        self._scalers()
        self._clipping()
        for name, kind in (("__enter__", Kind.AUTOCAST), ("__exit__", Kind.AUTOCAST_END)):
            put(autocast_mode.autocast, name, functools.partial(_region, watcher, kind))
        put(autocast_mode.autocast, "__init__", functools.partial(_region_made, watcher))
        self._compiling()
        before(torch, "save", _noting(watcher, Kind.SAVE))
        before(multiprocessing.process.BaseProcess, "start", functools.partial(_child, watcher))
        hear_graphs(self._patches, watcher)
        hear_loaders(self._patches, watcher)
        hear_workers(self._patches, watcher)
        hear_graphs_made(self._patches, watcher)
        open_watches.add(self)

    def hear_deepspeed(self) -> None:
        """Listen to DeepSpeed's loss scalers, once they are imported."""
        if self.open:
            scaler_hooks.hear_scales(self._patches, self._watcher)

    def _compiling(self) -> None:
        watcher = self._watcher
        watcher.compiler.plain.append(self._patches.paused)
        self._patches.before(torch, "compile", lambda *_, **__: watcher.compiles())
        others = functools.partial(hooks_of_others, (RootFinder, ModuleTracker))
        self._patches.put(torch.nn.modules.module, "_has_any_global_hook", others)
        let_modes_stay(self._patches)

    def _scalers(self) -> None:
        patches, watcher, scaler = self._patches, self._watcher, grad_scaler.GradScaler
        patches.put(scaler, "__init__", functools.partial(scaler_hooks.made, watcher, self._scaler_kind))
        patches.before(scaler, "state_dict", _noting(watcher, Kind.SAVE_SCALER))
        patches.wrap(scaler, "__getattr__", functools.partial(_peek, watcher))
        self._scaler_kind(scaler)
        for kind in scaler_hooks.subclasses(scaler):
            self._scaler_kind(kind)

    def _scaler_kind(self, kind: type) -> None:
        """Wrap what a class of scalers does itself, and the classes that it is made of."""
        for base in (one for one in kind.__mro__ if issubclass(one, grad_scaler.GradScaler)):
            if base not in self._kinds:
                self._kinds.add(base)
                torchs = base.__module__[:6] == "torch."  # a script's function may have several names
                put = self._patches.put_under_all_names if torchs else self._patches.put
                for name, instead in scaler_hooks.OF_SCALERS.items():
                    if isinstance(vars(base).get(name), FunctionType):
                        put(base, name, functools.partial(scaler_hooks.once, self._watcher, name, instead))

    def _clipping(self) -> None:
        """Wrap the functions that clip, also under the names that modules have imported them by."""
        for name in _CLIPS:
            original = getattr(clip_grad, name, None)
            if original is None:
                continue
            wrapped = put_in_place(functools.partial(_clip, self._watcher, name), original)
            for module in list(sys.modules.values()):
                if type(module) is ModuleType and vars(module).get(name) is original:
                    self._patches.set(module, name, wrapped)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hear nothing for a while; a step that is being recorded is abandoned."""
        watcher = self._ear.turn()
        listened = self._own.roots.listening
        self._own.roots.stop_listening()
        self._own.tape.discard("steps abandoned: an audit ran during them")
        self._own.averages.pause()
        try:
            yield
        finally:
            if self.open:
                self._own.averages.resume()
                self._ear.turn(watcher)
                if listened:
                    self._own.roots.listen()

    def close(self) -> None:
        """Take everything away."""
        if not self.open:
            return
        self.open = False
        for handle in self._handles:
            handle.remove()
        self._patches.restore()
        self._own.tape.workers.end()
        self._own.roots.stop_listening()
        self._ear.turn()
        gradients.forget()


def _engine(watcher: Watcher, original: Original, outputs: Any, seeds: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap what `backward` and `grad` call, under whatever name a script has bound these."""
    if _current_node() is not None:
        return original(outputs, seeds, *args, **kwargs)
    if gradients.several:
        gradients.trains_here()
    if not kwargs.get("accumulate_grad", True):
        create_graph, inputs = args[1:3]
        if create_graph:
            watcher.differentiated(outputs)
        # Under torch.func a graph is always made.
        if trains := (not create_graph or _functional()) and watcher.trains(inputs):
            watcher.backward(outputs, seeds, RETURNED)
        out = original(outputs, seeds, *args, **kwargs)
        if trains:
            watcher.goes_on()
        surely(watcher, watcher.thread.returns, inputs, known=trains)
        if not _functional():
            watcher.returned(out, inputs if trains else ())
        return out
    seed = watcher.backward(outputs, seeds)
    try:
        return original(outputs, seeds if seed is None else (seed,), *args, **kwargs)
    finally:
        if seed is not None:
            watcher.seed_ends()
        watcher.backward_ends()


def _using(watcher: Watcher, event: str, *said: str) -> Callable[..., Any]:
    def uses(owner: Any, *_: Any, **__: Any) -> None:
        if gradients.several:
            gradients.trains_here(owner)
        getattr(watcher, event)(owner, *said)

    return uses


def _functional() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _add_group(watcher: Watcher, original: Original, self: Any, param_group: Any) -> Any:
    out = original(self, param_group)
    watcher.owns(self, self.param_groups[-1]["params"])
    return out


def _loads(
    watcher: Watcher, original: Original, self: Any, state_dict: Any, *args: Any, **kwargs: Any
) -> Any:
    out = original(self, state_dict, *args, **kwargs)
    surely(watcher, watcher.updates.loads, self, state_dict)
    return out


def _model_loads(watcher: Watcher, original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    surely(watcher, watcher.updates.model_is_to_load, self)
    out = original(self, *args, **kwargs)
    surely(watcher, watcher.updates.model_loads, self)
    return out


def _noting(watcher: Watcher, kind: Kind) -> Callable[..., Any]:
    return lambda *_, **__: watcher.note(kind)


def _trains(watcher: Watcher, _module: Any, mode: bool = True, *_: Any) -> None:  # noqa: FBT001, FBT002  # torch's
    if not mode:
        watcher.roots.listen()  # what is validated, and in which precision
        watcher.evaluates()


def _child(watcher: Watcher, process: Any, *_: Any) -> None:
    # Workers that load data do not train.
    if "_worker_loop" not in str(getattr(process, "_target", "")):
        watcher.child(process)


def _peek(watcher: Watcher, _: None) -> Callable[..., Any]:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807  # it takes the place of one
        if any(part in name for part in _OVERFLOWS):
            watcher.note(Kind.PEEK, self, "scaler", name=name)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=self)

    return __getattr__


def _clip(watcher: Watcher, name: str, original: Original, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    watcher.changed(Kind.CLIP, name, held, given=(args, kwargs))
    out = original(held, *args, **kwargs)
    watcher.clipped(held)
    return out


def _region_made(  # torch's own signature
    watcher: Watcher,
    original: Original,
    self: Any,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,  # noqa: FBT001, FBT002
    *rest: Any,
    **more: Any,
) -> None:
    """Hear of a region of autocast that is made."""
    watcher.asked = watcher.asked or bool(enabled)
    original(self, device_type, dtype, enabled, *rest, **more)
    if enabled and not self._enabled:
        watcher.off.add(self)


def _region(watcher: Watcher, kind: Kind, original: Original, self: Any, *args: Any) -> Any:
    """Hear of the beginning or the end of a region of autocast."""
    inside = watcher.roots.inside or _current_node() is not None
    if not watcher.thread.runs:
        watcher.thread.region(watcher.journal.spot() if kind is Kind.AUTOCAST else None)
    if not inside and kind is Kind.AUTOCAST_END:
        watcher.note(kind)
    out = original(self, *args)
    if not inside and kind is Kind.AUTOCAST:
        off = dtype_name(self.fast_dtype) if self in watcher.off and not self._enabled else ""
        kept = "" if torch.is_autocast_cache_enabled() else UNCACHED
        watcher.note(kind, name=f"{self.device}{kept}", dtype=off)
        if self._enabled:
            watcher.casts()
    return out


class _Silence:
    """Takes anything and answers nothing."""

    def __getattr__(self, name: str) -> "_Silence":
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __contains__(self, _: object) -> bool:
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        pass


_SILENCE = _Silence()


class _Ear:
    """Stands between torch's names and a watcher, and lets the watcher go when the watch is over.

    A script may have kept a name of torch's that was replaced while it was watched: it goes on working, and is unheard.
    """

    __slots__ = ("_hears",)

    def __init__(self, watcher: Any) -> None:
        object.__setattr__(self, "_hears", watcher)

    def __getattr__(self, name: str) -> Any:
        """Return what the watcher has."""
        return getattr(self._hears, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the watcher has."""
        setattr(self._hears, name, value)

    def turn(self, watcher: Any = _SILENCE) -> Any:
        """Hear for another watcher, or for none; return the one before."""
        before = self._hears
        object.__setattr__(self, "_hears", watcher)
        return before
