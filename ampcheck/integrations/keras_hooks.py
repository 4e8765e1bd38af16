"""Keras on torch, watched as torch is: its layers and its optimizer report themselves."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import keras
import torch
from torch.nn.modules import module as torch_module

from ampcheck.observe.model.modules import ModuleTracker
from ampcheck.observe.patches import Patches
from ampcheck.observe.script.guard import guarded
from ampcheck.observe.script.roots import RootFinder
from ampcheck.observe.script.watcher import Watcher

_OURS = (RootFinder, ModuleTracker)


class Announced:
    """Lets a watcher hear of Keras's layers and optimizers; `__exit__` takes everything away."""

    def __init__(self, watcher: Watcher, optimizer: Any) -> None:
        """Prepare; the optimizer is the one that scales the loss, None for none."""
        self._watcher, self._optimizer = watcher, optimizer
        self._patches = Patches()
        self._running: set[int] = set()
        self._applying = False
        self._label = ""

    def __enter__(self) -> Self:
        """Begin."""
        if self._optimizer is not None:
            journal = self._watcher.journal
            self._label = journal.label(self._optimizer, "scaler")
            journal.describe(
                self._label,
                init_scale=float(self._optimizer.initial_scale),
                growth_interval=int(self._optimizer.dynamic_growth_steps),
                live=True,
            )
        put = self._patches.put
        put(keras.layers.Layer, "__call__", self._call)
        for owner in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
            base = next(part for part in owner.__mro__ if "apply" in vars(part))
            put(base, "apply", self._apply)
        put(keras.optimizers.LossScaleOptimizer, "scale_loss", self._scale_loss)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take everything away."""
        self._patches.restore()

    def _call(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        before = _hooks(torch_module._global_forward_pre_hooks)  # noqa: SLF001
        if not before or id(layer) in self._running:
            return original(layer, *args, **kwargs)
        self._running.add(id(layer))
        for hook in before:
            hook(layer, args)
        out = None
        try:
            out = original(layer, *args, **kwargs)
        finally:
            self._running.discard(id(layer))
            for hook in _hooks(torch_module._global_forward_hooks):  # noqa: SLF001
                hook(layer, args, out)
        return out

    def _scale_loss(self, original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
        now = self._watcher.tape.now
        if now is not None:
            now.keep_loss(loss)
        out = original(optimizer, loss)
        self._watcher.scaled(_AsScaler(self._scale()), out)
        return out

    def _scale(self) -> torch.Tensor:
        optimizer = self._optimizer
        value = optimizer.dynamic_scale.value if optimizer.built else torch.tensor(optimizer.initial_scale)
        return value.detach()

    def _apply(
        self, original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        if self._applying:
            return original(optimizer, grads, trainable_variables)
        self._applying = True
        scaled = optimizer is self._optimizer
        _update_begins(self._watcher)  # ends a recording: what follows is ours
        before = self._scale().clone() if scaled else None
        try:
            return original(optimizer, grads, trainable_variables)
        finally:
            self._applying = False
            if before is not None:
                after = self._scale()
                skipped = [(after < before).float()]
                self._watcher.scales.updated(self._watcher.steps, self._label, before, after, skipped)
            _update_ends(self._watcher)


def _hooks(table: dict[int, Callable[..., Any]]) -> list[Callable[..., Any]]:
    return [hook for hook in tuple(table.values()) if isinstance(getattr(hook, "__self__", None), _OURS)]


class _AsScaler:
    """What a watcher asks of a scaler."""

    def __init__(self, scale: torch.Tensor) -> None:
        self._scale = scale

    def is_enabled(self) -> bool:
        return True


@guarded
def _update_begins(watcher: Watcher) -> None:
    watcher._end_recording()  # noqa: SLF001  # torch's optimizers do it by their hooks


@guarded
def _update_ends(watcher: Watcher) -> None:
    watcher.stepped()
