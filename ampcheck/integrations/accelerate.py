"""A watch over a loop that is written with Accelerate."""

from typing import Any

import ampcheck.renderers.saving  # noqa: F401  # a report can then be printed and saved
from ampcheck.run.progress_line import Numbers
from ampcheck.run.watch_loop import Watch
from ampcheck.run.watch_loop import watch as watch_loop


def watch(accelerator: Any, *, every: int = 50, first: int = 2, **options: Any) -> Watch:
    """Return a watch over everything that an Accelerator has prepared; use it around the loop, after `prepare`.

    Where the accelerator has trackers, the loss scale is logged when it changes.
    """
    optimizers = [getattr(held, "optimizer", held) for held in accelerator._optimizers]  # noqa: SLF001  # as prepared
    logged: dict[str, Any] = {}
    numbers = Numbers()

    def on_step(held: Watch) -> None:
        found = (held.scale, held.skipped)
        if accelerator.trackers and held.scale is not None and logged.get("last") != found:
            logged["last"] = found
            values = {number.tag: number.value for number in numbers.fresh(held.watcher)}
            values |= {"ampcheck/loss_scale": held.scale, "ampcheck/skipped_steps": held.skipped}
            accelerator.log(values, step=held.steps)

    options = {"name": "model", "on_step": on_step, **options}
    models = list(accelerator._models)  # noqa: SLF001  # as prepared
    held = watch_loop(models, optimizers, accelerator.scaler, every=every, first=first, **options)
    held.note(f"Accelerate {accelerator.mixed_precision} on {accelerator.device.type}")
    return held
