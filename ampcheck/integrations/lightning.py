"""A callback for Lightning's Trainer."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from ampcheck.integrations.holding import Holder
from ampcheck.run.progress_line import Numbers


class AmpcheckCallback(Callback):
    """Watches `Trainer.fit`: Trainer(callbacks=[AmpcheckCallback("report.json")])."""

    def __init__(self, path: str | Path | None = None, **options: Any) -> None:
        """Prepare; `path` and `options` are those of `Holder`."""
        self.holder = Holder(path, **{"name": "model", **options})
        self._numbers = Numbers()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch, before anything is trained."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        held = self.holder.begin(pl_module, list(trainer.optimizers), scaler)
        held.note(f"Lightning {trainer.precision} with {type(trainer.strategy).__name__}")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Log scale, skips, underflow and gradient norms where a logger is there to take it."""
        held = self.holder.watch
        if held is None or trainer.logger is None:
            return
        found = {number.tag: number.value for number in self._numbers.fresh(held.watcher)}
        if held.scale is not None:
            found |= {"ampcheck/loss_scale": held.scale, "ampcheck/skipped_steps": float(held.skipped)}
        if found:
            trainer.logger.log_metrics(found, step=trainer.global_step)

    def on_fit_end(self, *_: Any) -> None:
        """Stop watching."""
        self.holder.end()

    def on_exception(self, *_: Any) -> None:
        """Stop watching a training that raised; what there is of it is kept."""
        self.holder.end()
