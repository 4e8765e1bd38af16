"""The operators whose emulation is held against silicon: inputs that are the same everywhere, and one call each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from settling.fixed import fill, numbers


class Operator(NamedTuple):
    """One call: its name, what settings of CUDA's products change it, its inputs, and itself."""

    name: str
    settings: tuple[str, ...]
    inputs: Callable[[], tuple[Tensor, ...]]
    call: Callable[..., Tensor]
    long: int = 1  #: how many products a result adds up


#: Accumulation settings: of float16's products, and of float32's.
HALF = ("default", "no reduced precision", "float16 sums")
WIDE = ("default", "tf32")
NONE = ("default",)


def _given(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(numbers(*shape, seed=seed + 500, scale=scale) for seed, shape in enumerate(shapes))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _layer(make: Callable[[], nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return a recurrent layer as a function of its input, with its fixed weights in the input's dtype."""

    def call(x: Tensor) -> Tensor:
        layer = fill(make())
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_((weight * 256).round() / 256)  # no format rounds these
            layer.to(x.device, x.dtype)
            out: Tensor = layer(x)[0]
        return out

    return call


def _gradient(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the gradient of a call with respect to its last input."""

    def backward(*inputs: Tensor) -> Tensor:
        *others, last = inputs
        last = last.detach().requires_grad_()
        out = call(*others, last)
        coming = (numbers(*out.shape, seed=77) * 64).round() / 64  # no format rounds these
        return torch.autograd.grad(out, last, coming.to(out.device, out.dtype))[0]

    return backward


def _transform(x: Tensor) -> Tensor:
    """Return a transform by its operator: on a CPU `torch.fft` refuses halves before the dispatcher is asked."""
    return torch.view_as_real(torch.ops.aten._fft_r2c(x, [1], 0, onesided=True)).flatten()


def _conv(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(x, w, padding=1)


_TALL, _WIDE = (32, 4096), (4096, 24)
_IMAGES, _FILTERS = (2, 64, 12, 12), (32, 64, 3, 3)
_HEADS = (2, 3, 96, 64)
_ROWS = (16, 2048)

PRODUCTS = (
    Operator("mm", HALF, _given(_TALL, _WIDE), torch.mm, 4096),
    Operator("mm, large numbers", HALF, _given(_TALL, _WIDE, scale=4.0), torch.mm, 4096),
    Operator("addmm", HALF, _given((24,), _TALL, _WIDE), torch.addmm, 4096),
    Operator("bmm", HALF, _given((3, 32, 512), (3, 512, 16)), torch.bmm, 512),
    Operator("linear, weight's gradient", HALF, _given((256, 64), (48, 64)), _gradient(functional.linear), 256),
    Operator("convolution", HALF, _given(_IMAGES, _FILTERS), _conv, 576),
    Operator("convolution, weight's gradient", HALF, _given(_IMAGES, _FILTERS), _gradient(_conv), 288),
    Operator("depthwise convolution", HALF, _given(_IMAGES, (64, 1, 3, 3)),
             lambda x, w: functional.conv2d(x, w, padding=1, groups=64), 9),
    Operator("transposed convolution", HALF, _given(_IMAGES, (64, 16, 2, 2)),
             lambda x, w: functional.conv_transpose2d(x, w, stride=2), 64),
    Operator("attention", HALF, _given(_HEADS, _HEADS, _HEADS), _attention, 96),
    Operator("attention's gradient", HALF, _given(_HEADS, _HEADS, _HEADS), _gradient(_attention), 96),
    Operator("lstm", HALF, _given((12, 4, 32)), _layer(lambda: nn.LSTM(32, 32)), 64),
    Operator("gru", HALF, _given((12, 4, 32)), _layer(lambda: nn.GRU(32, 32)), 64),
)  # fmt: skip
OTHERS = (
    Operator("sum", NONE, _given(_ROWS), lambda x: x.sum(-1)),
    Operator("mean", NONE, _given(_ROWS), lambda x: x.mean(-1)),
    Operator("variance", NONE, _given(_ROWS), lambda x: x.var(-1)),
    Operator("norm", NONE, _given(_ROWS), lambda x: x.norm(dim=-1)),
    Operator("logsumexp", NONE, _given(_ROWS), lambda x: x.logsumexp(-1)),
    Operator("cumsum", NONE, _given((16, 256)), lambda x: x.cumsum(-1)),
    Operator("softmax", NONE, _given(_ROWS, scale=8.0), lambda x: x.softmax(-1)),
    Operator("log_softmax", NONE, _given(_ROWS, scale=8.0), lambda x: x.log_softmax(-1)),
    Operator("layer norm", NONE, _given(_ROWS), lambda x: functional.layer_norm(x, x.shape[-1:])),
    Operator("rms norm", NONE, _given(_ROWS), lambda x: functional.rms_norm(x, x.shape[-1:])),
    Operator("group norm", NONE, _given(_IMAGES), lambda x: functional.group_norm(x, 8)),
    Operator("batch norm", NONE, _given(_IMAGES), lambda x: functional.batch_norm(x, None, None, training=True)),
    Operator("average pooling", NONE, _given(_IMAGES), lambda x: functional.avg_pool2d(x, 3)),
    Operator("bilinear", NONE, _given(_IMAGES), lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear")),
    Operator("exp", NONE, _given(_ROWS, scale=8.0), torch.exp),
    Operator("log", NONE, _given(_ROWS), lambda x: (x.abs() + 0.01).log()),
    Operator("tanh", NONE, _given(_ROWS, scale=3.0), torch.tanh),
    Operator("sigmoid", NONE, _given(_ROWS, scale=8.0), torch.sigmoid),
    Operator("gelu", NONE, _given(_ROWS, scale=4.0), functional.gelu),
    Operator("silu", NONE, _given(_ROWS, scale=4.0), functional.silu),
    Operator("rsqrt", NONE, _given(_ROWS), lambda x: (x.abs() + 0.01).rsqrt()),
    Operator("pow", NONE, _given(_ROWS), lambda x: (x.abs() + 0.01).pow(1.7)),
    Operator("division", NONE, _given(_ROWS, _ROWS), lambda x, y: x / (y.abs() + 0.01)),
    Operator("fft", NONE, _given((8, 256)), _transform),
)  # fmt: skip


def without_complex_halves(operator: Operator, dtype: torch.dtype) -> bool:
    """Tell whether CUDA has the operator in a dtype: transforms of bfloat16 it has not."""
    return not (operator.name == "fft" and dtype is torch.bfloat16)


def by_name(name: str) -> Operator:
    """Return an operator by name."""
    found: dict[str, Any] = {operator.name: operator for operator in (*PRODUCTS, *OTHERS)}
    return found[name]
