"""What a Python program calls: one function from a model, a batch and a loss to a report."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ampcheck.renderers.saving  # noqa: F401  # a report can then be printed and saved
from ampcheck.run.audit import audit
from ampcheck.run.watch_loop import watch
from ampcheck.targets.captured import Capture
from ampcheck.targets.spec import Target
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings

__all__ = ["capture", "check", "watch"]


def check(
    model: Any,
    batch: Any,
    loss: Callable[[Any, Any], Any],
    *,
    settings: Settings | None = None,
    optimizer: Callable[[Any], Any] | None = None,
) -> Report:
    """Audit `loss(model, batch)` in FP32 and in low precision; a list of batches is one batch a step.

    Runs where the model is: on CUDA under its own autocast, on a CPU under CUDA's casting rules. The model, the
    batch and all random generators are as before afterwards, unless several steps were asked for.
    """
    batches: Sequence[Any] = batch if isinstance(batch, list) else [batch]
    target = Target(type(model).__name__, model, batches, loss, optimizer)
    return audit(target, settings or Settings(steps=len(batches)))


def capture(model: Any, path: str | Path, scaler: Any = None) -> Capture:
    """Keep one training step in a file: `with ampcheck.capture(model, "step.safetensors"):` around a step of it.

    The file holds the weights, what the model was called with, and the gradient that came back to it, without the
    scale of a GradScaler that is given. `ampcheck --from step.safetensors` audits it.
    """
    return Capture(model, path, (lambda: float(scaler.get_scale())) if scaler is not None else lambda: 1.0)
