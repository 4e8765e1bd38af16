"""A copy of a model on which batches are tried."""

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ampcheck.targets.inputs import asked
from ampcheck.targets.nested import tensors
from ampcheck.targets.seeding import seeded

#: Batches that are tried at most, and seconds.
MOST_TRIES, MOST_SECONDS = 300, 30.0
#: Samples of a batch that is tried.
SAMPLES = 2
#: What the Python for a batch may speak of.
NAMES = {"torch": torch, "batch_size": SAMPLES, "SimpleNamespace": SimpleNamespace}


class Tried:
    """A copy of a model that batches are tried on."""

    def __init__(self, model: nn.Module) -> None:
        """Copy a model, where it can be copied."""
        try:
            self.model = copy.deepcopy(model)
        except Exception:  # noqa: BLE001  # not every model can be copied
            self.model = model
        self.asks = asked(self.model.forward)
        self.tries, self.last = 0, ""
        self._begun = time.monotonic()

    @property
    def over(self) -> bool:
        """Tell whether enough was tried."""
        return self.tries >= MOST_TRIES or time.monotonic() - self._begun > MOST_SECONDS

    def output(self, call: Callable[[Any], Any]) -> Any:
        """Return what the model returns, None where it raises or returns nothing that could be differentiated."""
        self.tries += 1
        try:
            with torch.no_grad(), seeded(0), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                output = call(self.model)
        except Exception as error:  # noqa: BLE001  # whatever it is, this batch is none
            self.last = (
                f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            )
            return None
        inexact = [t for t in tensors(output) if t.is_floating_point() and t.numel()]
        return output if inexact and all(bool(t.isfinite().all()) for t in inexact) else None


def value_of(text: str, **names: Any) -> Any:
    """Return the value of Python for an argument, of a few samples."""
    with seeded(0):
        return eval(text, NAMES | names)  # noqa: S307  # text written here


def all_values(inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of arguments, each of which may speak of those before it."""
    values: dict[str, Any] = {}
    for name, text in inputs.items():
        values[name] = value_of(text, **values)
    return values
