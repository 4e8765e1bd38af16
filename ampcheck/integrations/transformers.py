"""A callback for the Trainer of transformers."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ampcheck.integrations.holding import Holder


class AmpcheckCallback(TrainerCallback):
    """Watches `Trainer.train`: Trainer(..., callbacks=[AmpcheckCallback("report.json")])."""

    def __init__(self, path: str | Path | None = None, **options: Any) -> None:
        """Prepare; `path` and `options` are those of `Holder`."""
        self.holder = Holder(path, **{"name": "model", **options})

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Begin to watch; the Trainer's optimizer is one of Accelerate's, which knows its scaler."""
        inner = getattr(optimizer, "optimizer", optimizer)
        held = self.holder.begin(model, inner, getattr(optimizer, "scaler", None))
        held.note(f"transformers {'fp16' if args.fp16 else 'bf16' if args.bf16 else 'fp32'} was asked for")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop watching."""
        self.holder.end()
