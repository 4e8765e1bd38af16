"""What an operator asks of a GPU: multiplications, bytes, the size of its product, how many kernels."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
_IMAGES = 4  #: dimensions of a tensor that has channels_last
#: Reductions and norms that torch's compiler fuses with the element-wise operations around them.
_FUSABLE = frozenset(
    {"native_batch_norm", "native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward",
     "native_group_norm", "native_group_norm_backward", "_softmax", "_softmax_backward_data", "_log_softmax",
     "_log_softmax_backward_data", "sum", "mean", "native_dropout", "native_dropout_backward", "_to_copy"}
)  # fmt: skip
#: Tensors that one kernel of a for-each operation takes.
_TENSORS_PER_KERNEL = 64
_MASK = 10  #: place of convolution_backward's argument that says which gradients are wanted


def flops(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> int:
    """Return the floating-point operations of an operator; torch's own formula is wrong for grouped gradients."""
    if name == "convolution_backward":
        groups, rows, columns, inner = _convolution(args[1], args[2], args[0], args[7], args[9])
        return 2 * groups * rows * columns * inner * int(sum(args[_MASK][:2]))
    formula = flop_registry.get(func._overloadpacket)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


def fusable(func: Any, name: str) -> bool:
    """Tell whether torch's compiler can fuse an operator with its neighbours."""
    return torch.Tag.pointwise in func.tags or name in _FUSABLE or name.startswith("_foreach")


def moved(
    name: str, ins: Sequence[torch.Tensor], fresh: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> int:
    """Return the bytes an operator reads and writes; a look-up reads the rows it returns, not the whole table."""
    if name in {"embedding", "index", "gather", "index_select"}:
        ins = [*ins[1:], *fresh]
    elif name in {"index_put_", "index_add_", "scatter_add_", "embedding_dense_backward"}:
        ins, written = ins[-1:], ins[-1:]
    elif name in {"zero_", "fill_", "copy_"}:
        ins = ins[1:]
    return sum(leaf.numel() * leaf.element_size() for leaf in (*ins, *fresh, *written))


def kernels(name: str, args: Any, ins: Sequence[torch.Tensor]) -> int:
    """Return how many kernels a GPU launches for an operator."""
    if name == "convolution_backward":
        return max(1, int(sum(args[_MASK])))
    if name.startswith("_foreach"):
        tensors = sum(isinstance(leaf, torch.Tensor) for leaf in tree_iter(args[0]))
        return math.ceil(tensors / _TENSORS_PER_KERNEL)
    if name.startswith("_fused_"):
        return math.ceil(len(ins) / 4 / _TENSORS_PER_KERNEL)
    return 1


def product(
    name: str, args: Any, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """Return groups, rows, columns and inner size of a product or of a convolution as one."""
    if name in _PRODUCTS:
        left, right = ins[-2:]
        return (math.prod(left.shape[:-2]), left.shape[-2], right.shape[-1], left.shape[-1])
    if name == "convolution":
        return _convolution(ins[0], ins[1], outs[0], args[6], args[8])
    if name == "convolution_backward":
        return _convolution(args[1], args[2], args[0], args[7], args[9])
    if name.startswith("_scaled_dot_product"):
        query, key = ins[:2]
        return (math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1])
    return ()


def winograd(name: str, args: Any) -> bool:
    """Tell whether an operator is a convolution that Winograd's algorithm is for: 3x3, without stride or groups."""
    if not name.startswith("convolution"):
        return False
    backward = name == "convolution_backward"
    weight = args[2] if backward else args[1]
    stride, dilation, transposed, groups = (args[at + backward] for at in (3, 5, 6, 8))
    once = all(step == 1 for step in (*stride, *dilation))
    return tuple(weight.shape[2:]) == (3, 3) and once and not transposed and groups == 1


def _convolution(
    entering: torch.Tensor, weight: torch.Tensor, leaving: torch.Tensor, transposed: object, groups: int
) -> tuple[int, int, int, int]:
    """Return a convolution as groups of matrix products."""
    places = entering if transposed else leaving
    rows = places.shape[0] * math.prod(places.shape[2:])
    return (groups, rows, weight.shape[0] // groups, math.prod(weight.shape[1:]))


def sizes(name: str, ins: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return rows, columns and inner size of a matrix product; channels out and in of a convolution."""
    if name in _PRODUCTS:
        left, right = ins[-2:]
        return (left.shape[-2], right.shape[-1], left.shape[-1])
    if name == "convolution":
        return (ins[1].shape[0], ins[1].shape[1])
    if name == "convolution_backward":
        return (ins[2].shape[0], ins[2].shape[1])
    return ()


def layout(name: str, ins: Sequence[torch.Tensor]) -> str:
    """Return how the images of a convolution lie in memory; nothing of other operators."""
    if not name.startswith("convolution") or ins[0].dim() < _IMAGES:
        return ""
    volume = ins[0].dim() > _IMAGES
    last = ins[0].is_contiguous(memory_format=torch.channels_last_3d if volume else torch.channels_last)
    return ("channels_last" if last and not ins[0].is_contiguous() else "contiguous") + "_3d" * volume
