"""A callback for Keras 3: on its torch backend all there is to see, on others what can be seen from outside."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from ampcheck.integrations.holding import Holder
from ampcheck.integrations.keras_hooks import Announced
from ampcheck.integrations.keras_outside import Outside, loss_scale_optimizer


class AmpcheckCallback(keras.callbacks.Callback):
    """Watches `Model.fit`: model.fit(..., callbacks=[AmpcheckCallback("report.json")])."""

    def __init__(self, path: str | Path | None = None, **options: Any) -> None:
        """Prepare; `path` and `options` are those of `Holder`."""
        super().__init__()
        self.holder = Holder(path, **options)
        self._stack = ExitStack()
        self._outside: Outside | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to watch."""
        if keras.backend.backend() != "torch":
            self._outside = Outside(self.model)
            return
        held = self.holder.begin()
        for path, layer in named_layers(self.model):
            held.give(layer, path)
        for text in policies(self.model):
            held.note(text)
        self._stack.enter_context(Announced(held.watcher, loss_scale_optimizer(self.model)))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look at the loss scale, where nothing else can be seen."""
        if self._outside is not None:
            self._outside.stepped()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop watching."""
        self._stack.close()
        self.holder.end()
        if self._outside is not None:
            self.holder.publish(self._outside.report(list(policies(self.model))))


def named_layers(model: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a model and every layer in it, with the names that Keras gave them."""
    path = f"{above}.{model.name}" if above else model.name
    yield path, model
    held: Any = getattr(model, "layers", None) or getattr(model, "_layers", None)
    for layer in held or ():
        yield from named_layers(layer, path)


def policies(model: Any) -> Iterator[str]:
    """Yield which layers compute in which dtype, and what the optimizer does."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, layer in named_layers(model):
        if layer is not model:
            found[layer.dtype_policy.name].append(path.rpartition(".")[2])
    for policy, names in found.items():
        yield f"Keras dtype policy {policy}: {', '.join(names)}"
    optimizer = loss_scale_optimizer(model)
    if optimizer is not None:
        yield (
            f"Keras LossScaleOptimizer: starts at {float(optimizer.initial_scale):g}, doubles after "
            f"{optimizer.dynamic_growth_steps} good steps"
        )
    elif any("float16" in policy and "b" not in policy for policy in found):
        yield "layers compute in float16, and the optimizer does not scale the loss"
