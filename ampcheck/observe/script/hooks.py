"""Where a watcher hears of what a script does: torch's entry points, wrapped while it watches.

None of them is called for an operation: between recorded steps a step costs a dozen calls.
"""

import functools
import multiprocessing.process
import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampcheck.loop import RETURNED, Kind
from ampcheck.observe.modules import ModuleTracker
from ampcheck.observe.script.compiling import hooks_of_others, let_modes_stay
from ampcheck.observe.script.journal import dtype_name
from ampcheck.observe.script.patches import Patches
from ampcheck.observe.script.roots import RootFinder
from ampcheck.observe.script.watcher import Watcher

_current_node = torch._C._current_autograd_node
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "clip_grad_norm")
#: Parts of the names that overflows are asked for by.
_OVERFLOWS = ("found_inf", "overflow")


class Hooks:
    """A watcher's ears; `close` takes all of them away."""

    def __init__(self, watcher: Watcher) -> None:
        """Begin to listen for a watcher."""
        self._watcher = watcher
        self._patches = Patches()
        self._handles: list[Any] = []
        self._open = True
        wrap = self._patches.wrap
        self._handles.append(
            register_optimizer_step_pre_hook(lambda optimizer, *_: watcher.step_begins(optimizer))
        )
        self._handles.append(register_optimizer_step_post_hook(lambda *_: watcher.step_ends()))
        wrap(torch.autograd, "backward", functools.partial(_backward, watcher))
        wrap(torch.autograd, "grad", functools.partial(_grad, watcher))
        wrap(Optimizer, "add_param_group", functools.partial(_add_group, watcher))
        wrap(Optimizer, "state_dict", functools.partial(_noted, watcher, Kind.SAVE_OPTIMIZER))
        wrap(Optimizer, "zero_grad", functools.partial(_zero_grad, watcher, "optimizer"))
        wrap(torch.nn.Module, "zero_grad", functools.partial(_zero_grad, watcher, "model"))
        wrap(torch.nn.Module, "train", functools.partial(_train, watcher))
        for scheduler in {value for value in vars(lr_scheduler).values() if isinstance(value, type)}:
            if issubclass(scheduler, lr_scheduler.LRScheduler) and "step" in vars(scheduler):
                wrap(scheduler, "step", functools.partial(_schedule, watcher))
        self._scalers()
        self._clipping()
        for name, kind in (("__enter__", Kind.AUTOCAST), ("__exit__", Kind.AUTOCAST_END)):
            wrap(autocast_mode.autocast, name, functools.partial(_region, watcher, kind))
        wrap(autocast_mode.autocast, "__init__", functools.partial(_regions, watcher))
        self._compiling()
        wrap(torch, "save", functools.partial(_noted, watcher, Kind.SAVE))
        wrap(multiprocessing.process.BaseProcess, "start", functools.partial(_child, watcher))
        _LISTENING.add(self)

    def _compiling(self) -> None:
        wrap, watcher = self._patches.wrap, self._watcher
        watcher.compiler.plain.append(self._patches.paused)
        wrap(torch, "compile", functools.partial(_compile, watcher))
        others = functools.partial(hooks_of_others, (RootFinder, ModuleTracker))
        wrap(torch.nn.modules.module, "_has_any_global_hook", others)
        let_modes_stay(self._patches)

    def _scalers(self) -> None:
        wrap, watcher, scaler = self._patches.wrap, self._watcher, grad_scaler.GradScaler
        wrap(scaler, "__init__", functools.partial(_scaler, watcher))
        wrap(scaler, "scale", functools.partial(_scale, watcher))
        wrap(scaler, "unscale_", functools.partial(_unscale, watcher))
        wrap(scaler, "step", functools.partial(_scaler_step, watcher))
        wrap(scaler, "update", functools.partial(_update, watcher))
        wrap(scaler, "state_dict", functools.partial(_noted, watcher, Kind.SAVE_SCALER))
        wrap(scaler, "__getattr__", functools.partial(_peek, watcher))

    def _clipping(self) -> None:
        """Wrap the functions that clip, also under the names that modules have imported them by."""
        for name in _CLIPS:
            original = getattr(clip_grad, name, None)
            if original is None:
                continue
            wrapped = _clip(self._watcher, name, original)
            for module in list(sys.modules.values()):
                if type(module) is ModuleType and vars(module).get(name) is original:
                    self._patches.wrap(module, name, functools.partial(_instead, wrapped))

    def close(self) -> None:
        """Take everything away."""
        if not self._open:
            return
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._patches.restore()
        self._watcher.roots.deafen()


#: A fork takes the hooks along, and nobody would read what they write.
_LISTENING: "weakref.WeakSet[Hooks]" = weakref.WeakSet()


def _deafen_child() -> None:
    for hooks in list(_LISTENING):
        hooks.close()


# Once: what is registered for forks cannot be taken back.
os.register_at_fork(after_in_child=_deafen_child)


def _backward(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _current_node() is not None:
            return original(tensors, grad_tensors, *args, **kwargs)
        tensors = tensors if isinstance(tensors, torch.Tensor) else tuple(tensors)
        seed = watcher.backward(tensors) if grad_tensors is None else None
        try:
            return original(tensors, grad_tensors if seed is None else seed, *args, **kwargs)
        finally:
            if seed is not None:
                watcher.seed_ends()
            watcher.backward_ends()

    return backward


def _grad(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("create_graph") and _current_node() is None:
            inputs = inputs if isinstance(inputs, torch.Tensor) else tuple(inputs)
            if watcher.trains(inputs):
                watcher.backward(outputs, RETURNED)
        return original(outputs, inputs, *args, **kwargs)

    return grad


def _add_group(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_param_group(self: Any, param_group: Any) -> Any:
        out = original(self, param_group)
        watcher.owns(self, self.param_groups[-1]["params"])
        return out

    return add_param_group


def _zero_grad(watcher: Watcher, family: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.zeroed(self, family)
        return original(self, *args, **kwargs)

    return zero_grad


def _train(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002  # torch's own signature
        if not mode:
            watcher.roots.listen()  # what is validated, and in which precision
        return original(self, mode)

    return train


def _schedule(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_is_initial", False):  # its constructor takes a step of its own
            return original(self, *args, **kwargs)
        watcher.note(Kind.SCHEDULE, self, "scheduler", within=True)
        try:
            return original(self, *args, **kwargs)
        finally:
            watcher.leaves()

    return step


def _scaler(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    names = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
    defaults = ("cuda", 2.0**16, 2.0, 0.5, 2000, True)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it takes the place of one
        original(self, *args, **kwargs)
        asked = dict(zip(names, defaults, strict=True)) | dict(zip(names, args, strict=False)) | kwargs
        watcher.made(self, asked)

    return __init__


def _scale(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        watcher.scale(self, outputs)
        out = original(self, outputs)
        watcher.scaled(self, out)
        return out

    return scale


def _unscale(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def unscale_(self: Any, optimizer: Any) -> Any:
        watcher.unscale(self, optimizer)
        return original(self, optimizer)

    return unscale_


def _scaler_step(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.scaler_step_begins(self, optimizer)
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            watcher.scaler_step_ends(self, optimizer)

    return step


def _update(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.update_begins(self, given=bool(args or kwargs))
        out = original(self, *args, **kwargs)
        watcher.update_ends(self)
        return out

    return update


def _noted(watcher: Watcher, kind: Kind, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        watcher.note(kind)
        return original(*args, **kwargs)

    return noted


def _compile(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  # it takes the place of one
        watcher.compiles()
        return original(*args, **kwargs)

    return compile


def _peek(watcher: Watcher, _: None) -> Callable[..., Any]:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807  # it takes the place of one
        if any(part in name for part in _OVERFLOWS):
            watcher.note(Kind.PEEK, self, "scaler", name=name)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=self)

    return __getattr__


def _clip(watcher: Watcher, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        watcher.changed(Kind.CLIP, name, held)
        return original(held, *args, **kwargs)

    return clip


def _regions(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(  # noqa: N807  # it takes the place of one
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,  # noqa: FBT001, FBT002  # torch's own signature
        *rest: Any,
        **more: Any,
    ) -> None:
        watcher.asked = watcher.asked or bool(enabled)
        original(self, device_type, dtype, enabled, *rest, **more)
        if enabled and not self._enabled:
            watcher.off.add(self)

    return __init__


def _region(watcher: Watcher, kind: Kind, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def region(self: Any, *args: Any) -> Any:
        inside = watcher.roots.inside or _current_node() is not None
        if not inside and kind is Kind.AUTOCAST_END:
            watcher.note(kind)
        out = original(self, *args)
        if not inside and kind is Kind.AUTOCAST:
            off = dtype_name(self.fast_dtype) if self in watcher.off else ""
            watcher.note(kind, name=str(self.device), dtype=off)
        return out

    return region


def _child(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        # Workers that load data do not train.
        if "_worker_loop" not in str(getattr(self, "_target", "")):
            watcher.child(self)
        return original(self)

    return start


def _instead(wrapped: Any, _original: Any) -> Any:
    return wrapped
