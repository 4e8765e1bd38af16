"""Everything a step may change, put back bit for bit."""

import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.observe.modules import tensors_in, unwrapped

_CONTAINERS = (list, dict, set, deque)
#: nn.Module's own tables: parameters and buffers are kept as such, hooks and children stay as they are.
_MODULE_TABLES = frozenset(torch.nn.Module().__dict__)


@dataclass(slots=True)
class _Kept:
    """A container that a step may fill anew, and what was in it."""

    container: Any
    content: Any

    def restore(self) -> None:
        self.container.clear()
        if isinstance(self.container, (dict, set)):
            self.container.update(self.content)
        else:
            self.container.extend(self.content)


class Snapshot:
    """The state of a model, a batch and all random generators at one moment.

    Restoring puts back values in place, attributes that were bound anew, plain containers, gradients and the
    state of torch's, Python's and (if it is loaded) NumPy's random generators.
    """

    def __init__(self, model: Any, batch: Any = None) -> None:
        """Copy the state."""
        self._kept = [kept for module in _modules(model) for kept in _containers(module)]
        if isinstance(batch, (list, dict)):
            self._kept.append(_Kept(batch, batch.copy()))
        values = [value for kept in self._kept for value in _values(kept.content)]
        tensors = [tensor for value in (*values, batch) for _, tensor in tensors_in(value, "")]
        unique = {id(tensor): tensor for tensor in tensors if _has_data(tensor)}.values()
        self._tensors = [(tensor, tensor.data, tensor.detach().clone()) for tensor in unique]
        self._grads = [(tensor, tensor.grad) for tensor in unique if tensor.is_leaf and tensor.requires_grad]
        self._random = random_state()

    def restore(self) -> None:
        """Put the state back; gradients are the ones that were there."""
        for kept in self._kept:
            kept.restore()
        for tensor, grad in self._grads:
            tensor.grad = None
        for tensor, data, copy in self._tensors:
            _put_back(tensor, data, copy)
        for tensor, grad in self._grads:
            tensor.grad = grad
        set_random_state(self._random)


def _put_back(tensor: torch.Tensor, data: torch.Tensor, copy: torch.Tensor) -> None:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if tensor.layout is not torch.strided:
            tensor.data = copy.clone()
            return
        if tensor.dtype != data.dtype or tensor.data_ptr() != data.data_ptr():
            tensor.data = data
        # An expanded tensor cannot be written to, by the step neither.
        if torch._debug_has_internal_overlap(data) != 1:  # noqa: SLF001
            data.copy_(copy)


def _modules(model: Any) -> Iterator[torch.nn.Module]:
    modules = getattr(unwrapped(model), "modules", None)
    return iter(modules()) if callable(modules) else iter(())


def _containers(module: torch.nn.Module) -> Iterator[_Kept]:
    own = module.__dict__
    tables = [own, own["_parameters"], own["_buffers"]]
    tables += [value for name, value in own.items() if isinstance(value, _CONTAINERS) and name not in _MODULE_TABLES]
    return (_Kept(table, table.copy()) for table in tables)


def _values(content: Any) -> Iterator[Any]:
    return iter(content.values()) if isinstance(content, dict) else iter(content)


def _has_data(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


def random_state() -> dict[str, Any]:
    """Return the state of every random generator in use."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put every random generator back."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
