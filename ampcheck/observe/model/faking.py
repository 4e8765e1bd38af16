"""Tensors that have a shape and a dtype and take no memory, where they would take some.

Under torch's FakeTensorMode alone nothing has a value, and code that reads a mask or a list of rates stops. Here
what is small and computed from nothing fake is real; parameters and what they touch are fake.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.structure import modules

#: Elements up to which a tensor made from nothing is real: masks and labels of a batch are, weights are not.
_SMALL: Final = 1 << 16
#: Elements up to which what is computed from real ones stays real: attention masks do, unless sequences are long.
_COMPUTED: Final = 1 << 24
_BATCH_NORMS: Final = frozenset(
    {torch.ops.aten.native_batch_norm.default, torch.ops.aten._native_batch_norm_legit.default}
)


class _AsKernels(FakeTensorMode):
    """Fake tensors with the dtypes that an operation's kernel gives, where torch's fake one errs.

    Batch norm's saved statistics have the dtype of its FP32 weights; the fake ones that of a half input.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fakes."""
        made: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if func not in _BATCH_NORMS or made[1].dtype not in HALVES or args[1] is None:
            return made
        return made[0], *(saved.to(args[1].dtype) for saved in made[1:])


class Faking(TorchDispatchMode):
    """Above a FakeTensorMode: runs operations on real tensors alone for their values."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        """Let what is small and made from nothing be real."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotations here
        self._limit = _SMALL

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fakes, or for its values."""
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(leaf, FakeTensor) for leaf in given):
            return func(*args, **kwargs)
        if _large(func, args, kwargs, _COMPUTED if given else self._limit):
            return func(*args, **kwargs)
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake of a tensor on the CPU, however small it is."""
        try:
            self._limit = -1
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        finally:
            self._limit = _SMALL


def _large(func: Any, args: Any, kwargs: Any, limit: int) -> bool:
    """Tell whether an operation would make a tensor of more elements than the limit; tried without memory."""
    if not isinstance(func, OpOverload) or func.is_view or func._schema.is_mutable:
        return False
    try:
        made = func(*args, **kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return False  # how many there are is in the numbers, and they are there
    return any(leaf.numel() > limit for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor))


@contextmanager
def fake_tensors() -> Iterator[Faking]:
    """Let large tensors, and all that is computed from them, be fake."""
    with (
        _without_log(),
        _AsKernels(allow_non_fake_inputs=True),
        Faking() as faking,
        warnings.catch_warnings(),
    ):
        # What torch's own deepcopy looks at, and its way from a real tensor to a fake one.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        yield faking


@contextmanager
def _without_log() -> Iterator[None]:
    """Hold back a traceback of torch's insides for each operation that raises, besides the exception itself."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def hold_fakes(model: Any, batch: Any, faking: Faking) -> Any:
    """Put fakes in the place of a model's parameters and buffers; return a batch with fake numbers.

    What is on the meta device has no values either, but the casting rules of no device: it moves to the CPU.
    """
    known: dict[int, torch.Tensor] = {}
    for module in modules(model):
        for table in ("_parameters", "_buffers"):
            held = module.__dict__.get(table) or {}
            held.update(
                {name: _fake(tensor, faking, known) for name, tensor in held.items() if tensor is not None}
            )
    return tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, faking, known), batch)


def _fake(tensor: torch.Tensor, faking: Faking, known: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return the fake of a tensor of numbers, tied ones once; what holds indices or masks stays as it is."""
    nowhere = tensor.device.type == "meta"
    if not nowhere and (
        isinstance(tensor, FakeTensor) or not (tensor.is_floating_point() or tensor.is_complex())
    ):
        return tensor
    if id(tensor) not in known:
        made = faking.like(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        known[id(tensor)] = made
    return known[id(tensor)]
