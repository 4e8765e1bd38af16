"""Comparing what a model gives in low precision with what it gives in FP32."""

from collections.abc import Iterable
from typing import Any

import torch

from ampcheck.observe.model.modules import tensors_in
from ampcheck.values.agreement import IMAGE, LOGITS, NUMBERS, TOKENS, Agreement

_IMAGE_CHANNELS = frozenset({1, 3, 4})
_IMAGE_DIMS = 4
_TOP = 5
#: What the last layer of a classifier or language model is called.
_HEADS = frozenset("lm_head head heads classifier fc logits score output_projection to_logits".split())

Outputs = dict[str, torch.Tensor]


def held(value: Any) -> Outputs:
    """Return the tensors of a model's result by name, as they are now."""
    return {name: tensor.detach().clone() for name, tensor in tensors_in(value, "output") if tensor.numel()}


def compare(before: Outputs, after: Outputs, heads: Iterable[int]) -> tuple[Agreement, ...]:
    """Return how each output of a run agrees with FP32's; `heads` are widths of layers that give logits."""
    widths = frozenset(heads)
    pairs = [(name, before[name], after[name]) for name in before if name in after]
    found = [_agreement(name, wide, low, widths) for name, wide, low in pairs]
    lost = [name for name in before if name not in after]
    return (*found, *(Agreement(name, NUMBERS, float("inf"), elements=before[name].numel()) for name in lost))


def widths_of_heads(named: Iterable[tuple[str, torch.nn.Module]]) -> list[int]:
    """Return how many logits the layers give that are named as a head."""
    return [
        module.out_features
        for path, module in named
        if isinstance(module, torch.nn.Linear) and path.rpartition(".")[2] in _HEADS
    ]


def _agreement(name: str, wide: torch.Tensor, low: torch.Tensor, heads: frozenset[int]) -> Agreement:
    if wide.shape != low.shape:
        return _ragged(name, wide, low)
    if not (wide.is_floating_point() or wide.is_complex()):
        return _tokens(name, wide, low)
    if wide.is_complex():
        wide, low = torch.view_as_real(wide.resolve_conj()), torch.view_as_real(low.resolve_conj())
    r, x = wide.double(), low.double()
    known = r.isfinite()
    new = int((known & ~x.isfinite()).sum())
    both = known & x.isfinite()
    r, x = r.where(both, 0.0), x.where(both, 0.0)
    noise, signal, own = float((x - r).norm()), float(r.norm()), float(x.norm())
    error = 0.0 if not noise else noise / signal if signal else float("inf")
    meaning = _meaning(name, wide, heads)
    top1, top5, kl = _logits(r, x) if meaning == LOGITS and not new else (None, None, None)
    return Agreement(
        name,
        meaning,
        float("inf") if new else error,
        cosine=0.0 if new else _cosine(float((x * r).sum()), signal * own, noise),
        psnr=_psnr(r, noise) if meaning == IMAGE and not new else None,
        top1=top1,
        top5=top5,
        kl=kl,
        nonfinite=new,
        unfit=int((~known).sum()),
        elements=wide.numel(),
    )


def _cosine(product: float, norms: float, noise: float) -> float:
    """Return the cosine of two tensors; of two that are zero it is 1."""
    return product / norms if norms else float(not noise)


def _meaning(name: str, wide: torch.Tensor, heads: frozenset[int]) -> str:
    if "logits" in name or (wide.ndim > 1 and wide.shape[-1] in heads):
        return LOGITS
    if wide.ndim == _IMAGE_DIMS and wide.shape[1] in _IMAGE_CHANNELS and min(wide.shape[2:]) > 1:
        return IMAGE
    return NUMBERS


def _logits(r: torch.Tensor, x: torch.Tensor) -> tuple[float, float, float]:
    """Return the shares of equal largest and five largest entries, and the mean divergence of the softmax."""
    most = min(_TOP, r.shape[-1])
    first, second = r.topk(most).indices, x.topk(most).indices
    top1 = float((first[..., 0] == second[..., 0]).double().mean())
    top5 = float((first.sort().values == second.sort().values).all(-1).double().mean())
    log_r, log_x = r.log_softmax(-1), x.log_softmax(-1)
    return top1, top5, max(0.0, float((log_r.exp() * (log_r - log_x)).sum(-1).mean()))


def _psnr(r: torch.Tensor, noise: float) -> float:
    """Return the peak signal over the noise in decibels; the peak is the span of FP32's picture."""
    span = float(r.max() - r.min())
    if not noise or not span:
        return float("inf") if not noise else float("-inf")
    return float(20 * torch.log10(torch.tensor(span * r.numel() ** 0.5 / noise, dtype=torch.float64)))


def _tokens(name: str, wide: torch.Tensor, low: torch.Tensor) -> Agreement:
    differ = wide != low
    return Agreement(
        name,
        TOKENS,
        float(differ.double().mean()),
        diverged=_first(differ) if bool(differ.any()) else None,
        elements=wide.numel(),
    )


def _first(differ: torch.Tensor) -> int:
    """Return the first position, along the last dimension, at which anything differs."""
    along = differ.reshape(-1, differ.shape[-1]).any(0) if differ.ndim else differ.reshape(1)
    return int(along.to(torch.int8).argmax())


def _ragged(name: str, wide: torch.Tensor, low: torch.Tensor) -> Agreement:
    """Return the agreement of results of different sizes: what one of them lacks differs."""
    if wide.is_floating_point() or wide.ndim != low.ndim or wide.shape[:-1] != low.shape[:-1]:
        return Agreement(name, NUMBERS, float("inf"), elements=wide.numel())
    both, longest = min(wide.shape[-1], low.shape[-1]), max(wide.shape[-1], low.shape[-1])
    differ = wide[..., :both] != low[..., :both]
    rows = differ.reshape(-1, both).shape[0]
    share = (float(differ.double().sum()) + (longest - both) * rows) / (longest * rows)
    first = _first(differ) if bool(differ.any()) else both
    return Agreement(name, TOKENS, share, diverged=first, elements=wide.numel())
