"""Which layer a matrix product belongs to: the module that owns its weight."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ampcheck.observe.model.modules import ModuleTracker
from ampcheck.observe.model.structure import is_lazy

#: Autograd nodes behind which a weight is still itself: views of it, and copies in another dtype or order.
_SAME = (
    "T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Expand|ToCopy|Clone|Unsqueeze|Squeeze|Slice|Select|Split"
    "|SplitWithSizes|Unbind|Alias|AsStrided|UnsafeSplit|Diagonal|Unfold|Narrow|Contiguous|Chunk"
)
_KEEPS = frozenset(f"{name}Backward{number}" for name in _SAME.split("|") for number in range(3))
_DEPTH = 12


class Layer(NamedTuple):
    """A weight's place in the model."""

    module: str
    parameter: str  #: '' where the weight is computed


class Owners:
    """Finds the layer of a product's weight while a step runs."""

    def __init__(self, tracker: ModuleTracker) -> None:
        self._tracker = tracker
        self._places: dict[int, list[Layer]] = {}
        self._memory: dict[int, int] = {}
        self._recurrent = {
            path
            for module, path in tracker.named()
            if isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase)
        }
        for path, name, parameter in tracker.parameters():
            if not is_lazy(parameter):
                self._places.setdefault(id(parameter), []).append(Layer(path, name))
                plain = type(parameter.data) is torch.Tensor and parameter.layout is torch.strided
                if plain and parameter.numel():
                    self._memory[parameter.untyped_storage().data_ptr()] = id(parameter)

    def of(self, weight: torch.Tensor) -> Layer | None:
        """Return the layer of a tensor that is a parameter, a view or a copy of one; None for any other."""
        places = next((self._places[key] for key in self._identities(weight) if key in self._places), None)
        if places is None:
            return None
        running = self._tracker.path(self._tracker.current)
        return next((place for place in places if place.module == running), places[0])

    def running(self) -> Layer:
        """Return the running module, for a weight that is computed."""
        return Layer(self._tracker.path(self._tracker.current), "")

    @property
    def recurrent(self) -> bool:
        """Tell whether a recurrent layer is running, which no recipe touches."""
        return bool(self._recurrent) and self._tracker.path(self._tracker.current) in self._recurrent

    def _identities(self, tensor: torch.Tensor) -> Iterator[int]:
        yield id(tensor)
        if tensor._base is not None:
            yield id(tensor._base)
        if tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            yield self._memory.get(tensor.untyped_storage().data_ptr(), 0)
        node = tensor.grad_fn
        for _ in range(_DEPTH):
            if node is None:
                return
            if (leaf := getattr(node, "variable", None)) is not None:
                yield id(leaf)
                return
            if node.name() not in _KEEPS:
                return
            node = node.next_functions[0][0]
