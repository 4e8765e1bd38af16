"""What a script calls without gradients: the inputs of its models, kept to audit their forwards when it has ended."""

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ampcheck.inference.lab import call_kept
from ampcheck.observe.cast_weights import state
from ampcheck.targets.spec import Target, no_loss
from ampcheck.values.settings import Settings

#: Models kept, and of each the calls: the first, and ever more rarely then.
MOST_MODELS, MOST_CALLS = 8, 6
#: Bytes of inputs kept of one model.
MOST_BYTES = 1 << 28
_PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(slots=True)
class Called:
    """A model that a script calls without gradients."""

    held: Callable[[], Any]  #: the model; None where the script let go of it
    kind: str
    precision: str  #: fp16 or bf16; '' where the script computes in FP32
    cast: str
    calls: int = 0
    batches: list[Any] = field(default_factory=list)
    bytes: int = 0

    @property
    def wanted(self) -> bool:
        """Tell whether the inputs of this call are kept."""
        power = self.calls & (self.calls - 1) == 0
        return power and len(self.batches) < MOST_CALLS and self.bytes < MOST_BYTES


def _itself(module: torch.nn.Module) -> torch.nn.Module:
    return module


class Forwards:
    """Keeps the inputs of outermost module calls without gradients; nothing else of a script is touched."""

    def __init__(self) -> None:
        """Begin with nothing called."""
        self.models: dict[int, Called] = {}
        self.failed = 0  #: calls whose inputs could not be copied

    def note(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call; whatever goes wrong here, the script goes on."""
        try:
            called = self._of(module)
            if called is not None:
                if called.wanted:
                    self._keep(called, args, kwargs)
                called.calls += 1
        except Exception:  # noqa: BLE001  # a module that answers in its own way
            self.failed += 1

    def _of(self, module: torch.nn.Module) -> Called | None:
        known = self.models.get(id(module))
        if known is not None or len(self.models) >= MOST_MODELS:
            return known
        tensors = [tensor for _, _, tensor, buffer in state(module) if not buffer]
        if not tensors:
            return None
        half = next((tensor.dtype for tensor in tensors if tensor.dtype in _PRECISIONS), None)
        device = tensors[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        precision = _PRECISIONS.get(half or autocast or torch.float32, "")
        # A model on a GPU may have to make room for the next one.
        held = weakref.ref(module) if device != "cpu" else partial(_itself, module)
        cast = "weights" if half is not None or autocast is None else "autocast"
        called = self.models[id(module)] = Called(held, type(module).__name__, precision, cast)
        return called

    def _keep(self, called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            kept = copy.deepcopy((args, kwargs))
        except Exception:  # noqa: BLE001  # whatever the script passes to its model
            self.failed += 1
            return
        found: list[torch.Tensor] = [
            item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)
        ]
        called.bytes += sum(tensor.numel() * tensor.element_size() for tensor in found)
        called.batches.append({"args": kept[0], "kwargs": kept[1]})

    def targets(self, name: str) -> Iterator[tuple[Target, Settings]]:
        """Yield what is to be audited of each model that is still there, the most called last."""
        for called in self.models.values():
            model = called.held()
            if model is None or not called.batches:
                continue
            notes = [
                f"{called.calls} calls of {called.kind} were seen, {len(called.batches)} of them are audited"
            ]
            if not called.precision:
                notes.append("the script computes in FP32: audited as if the model were cast to fp16")
            target = Target(
                f"{name}: {called.kind}",
                model,
                called.batches,
                no_loss,
                predict=call_kept,
                infers=True,
                notes=tuple(notes),
            )
            yield target, Settings(called.precision or "fp16", mode="infer", cast=called.cast)

    @property
    def lost(self) -> list[str]:
        """Return the models that the script let go of before it ended."""
        return [called.kind for called in self.models.values() if called.held() is None]
