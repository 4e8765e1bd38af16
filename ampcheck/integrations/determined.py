"""A callback for PyTorchTrials of Determined, on a cluster or off it."""

from pathlib import Path
from typing import Any

from determined.pytorch import PyTorchCallback

from ampcheck.integrations.holding import Holder


class AmpcheckCallback(PyTorchCallback):
    """Watches a trial: build_callbacks returns {"ampcheck": AmpcheckCallback(self.context, "report.json")}."""

    def __init__(self, context: Any, path: str | Path | None = None, **options: Any) -> None:
        """Prepare for a trial's context; `path` and `options` are those of `Holder`."""
        super().__init__()
        self._context = context
        self.holder = Holder(path, **{"name": "model", **options})

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Begin to watch what the context wrapped: its models stand behind proxies that cast by themselves."""
        context = self._context
        self.holder.begin(list(context.models), list(context.optimizers), context._scaler)  # noqa: SLF001  # wrap_scaler keeps it there

    def on_trial_shutdown(self) -> None:
        """Stop watching."""
        self.holder.end()
