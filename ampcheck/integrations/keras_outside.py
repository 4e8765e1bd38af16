"""What can be seen of a Keras model on a backend that is not torch: its weights and its loss scale."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import torch

from ampcheck.diagnose.verdict import judged_by_trace
from ampcheck.observe.statistics.step_record import StepRecord
from ampcheck.values.loop import Cause, Loop, LoopObject, ScaleEvent
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site, Trace

_SCALER = "scaler 1"
_BLIND = (
    "Keras runs on {}: the loss scale, the dtype policies and the weights were seen; results, gradients and casts "
    "were not (set KERAS_BACKEND=torch to see them)"
)


def loss_scale_optimizer(model: Any) -> Any:
    """Return the optimizer of a model if it scales the loss, else None."""
    optimizer = getattr(model, "optimizer", None)
    return optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else None


def scale_of(optimizer: Any) -> float:
    """Return the loss scale of an optimizer now."""
    scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    return float(keras.ops.convert_to_numpy(scale))


class Outside:
    """Follows a training by what Keras itself tells."""

    def __init__(self, model: Any) -> None:
        """Begin."""
        self._model = model
        self._optimizer = loss_scale_optimizer(model)
        self._scale = self._first = None if self._optimizer is None else scale_of(self._optimizer)
        self._events: list[ScaleEvent] = []
        self._steps = 0

    def stepped(self) -> None:
        """Take note of a batch that has been trained."""
        if self._optimizer is not None and self._scale is not None:
            self._sync()
            before, self._scale = self._scale, scale_of(self._optimizer)
            if self._scale != before:
                fell = self._scale < before
                cause = Cause("", "") if fell else None
                self._events.append(ScaleEvent(self._steps, _SCALER, before, self._scale, fell, cause))
        self._steps += 1

    def _sync(self) -> None:
        """Bring variables up to date that JAX's trainer keeps apart while it trains."""
        sync = getattr(self._model, "jax_state_sync", None)
        if sync is not None:
            sync()

    def report(self, notes: Sequence[str]) -> Report:
        """Return what there is to say."""
        first = {} if self._first is None else {_SCALER: self._first}
        things = (LoopObject(_SCALER, "LossScaleOptimizer"),) if first else ()
        backend = keras.backend.backend()
        report = Report(
            f"Keras {self._model.name}",
            "fp16" if self._half() else "fp32",
            0,
            Trace(),
            Trace(
                weights(self._model),
                not_audited={f"operations and gradients: Keras runs them on {backend}": 1},
            ),
            notes=(_BLIND.format(backend), *notes),
            environment={"keras": keras.__version__, "device": backend},
            loop=Loop(steps=self._steps, first_scales=first, scales=tuple(self._events), things=things),
        )
        return judged_by_trace(report)

    def _half(self) -> bool:
        return any("float16" in name for name in policy_names(self._model))


def policy_names(model: Any) -> Iterator[str]:
    """Yield the names of the dtype policies of a model's layers."""
    for layer in model._flatten_layers():  # noqa: SLF001  # it has no public name
        yield layer.dtype_policy.name


def weights(model: Any) -> dict[Site, TensorStats]:
    """Return the statistics of a model's weights as they are now."""
    step_record = StepRecord()
    for weight in model.weights:
        layer, _, name = str(weight.path).rpartition("/")
        values = torch.from_numpy(keras.ops.convert_to_numpy(weight).copy())
        if values.is_floating_point():
            dtype = str(values.dtype).removeprefix("torch.")
            key = (layer.replace("/", "."), "", f"param[{name}]", Phase.STATE, dtype, "", 0)
            step_record.add(step_record.number(key), values)
    return dict(step_record.fetch().sites)
