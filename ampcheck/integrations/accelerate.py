"""A watch over a loop that is written with Accelerate."""

from typing import Any

from ampcheck.watching import Watch
from ampcheck.watching import watch as watch_loop


def watch(accelerator: Any, *, every: int = 50, first: int = 2, **options: Any) -> Watch:
    """Return a watch over everything that an Accelerator has prepared; use it around the loop, after `prepare`.

    Where the accelerator has trackers, the loss scale is logged when it changes.
    """
    optimizers = [getattr(held, "optimizer", held) for held in accelerator._optimizers]  # noqa: SLF001  # as prepared
    logged: dict[str, Any] = {}

    def told(held: Watch) -> None:
        found = (held.scale, held.skipped)
        if accelerator.trackers and held.scale is not None and logged.get("last") != found:
            logged["last"] = found
            values = {"ampcheck/loss_scale": held.scale, "ampcheck/skipped_steps": held.skipped}
            accelerator.log(values, step=held.steps)

    options = {"name": "model", "told": told, **options}
    models = list(accelerator._models)  # noqa: SLF001  # as prepared
    held = watch_loop(models, optimizers, accelerator.scaler, every=every, first=first, **options)
    held.note(f"Accelerate {accelerator.mixed_precision} on {accelerator.device.type}")
    return held
