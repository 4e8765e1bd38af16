"""Every recipe against another implementation of it: equal to what, and how near.

python tests/studies/recipe_witnesses.py    writes reports/recipe_witnesses.md
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.fp8.casts import rounded
from ampcheck.observe.fp8.emulate import Emulation, Product
from ampcheck.observe.fp8.owners import Layer
from ampcheck.values.recipes import RECIPES, Cast, Grain, Scaling, recipe
from ampcheck.values.wording import plural

REPORT = Path(__file__).parents[2] / "reports" / "recipe_witnesses.md"
AO = {"ao-tensorwise": "tensorwise", "ao-rowwise": "rowwise", "ao-rowwise-gw-hp": "rowwise_with_gw_hp"}
_PLACE = Layer("", "weight")
_FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
_TOPS = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}


@dataclass(frozen=True)
class Witness:
    """One comparison."""

    recipe: str
    equal_to: str
    what: str
    elements: int
    differ: int
    furthest: float  #: relative to the largest element of each tensor


def compared(name: str, equal_to: str, what: str, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Witness:
    """Return how near tensors are to those of a witness."""
    differ = sum(int((a != b).sum()) for a, b in pairs)
    furthest = max(float((a.double() - b.double()).abs().max() / b.double().abs().max()) for a, b in pairs)
    return Witness(name, equal_to, what, sum(a.numel() for a, _ in pairs), differ, furthest)


def net(bias: bool, dtype: torch.dtype) -> tuple[nn.Sequential, torch.Tensor]:
    """Return a model and its input, whose rows differ in size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96, bias=bias), nn.ReLU(), nn.Linear(96, 48, bias=bias)).to(dtype)
    return model, (torch.randn(80, 64) * torch.randn(80, 1).exp()).to(dtype)


def by_torchao(name: str, model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    """Return output and gradients of torchao's own emulation."""
    float8, theirs = import_module("torchao.float8"), copy.deepcopy(model)
    config = dataclasses.replace(float8.Float8LinearConfig.from_recipe_name(AO[name]), emulate=True)
    float8.convert_to_float8_training(theirs, config=config)
    y = theirs(x)
    y.float().square().sum().backward()
    return [y.detach(), *(p.grad for p in theirs.parameters())]


def by_us(name: str, model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the same of the emulator."""
    run, y = Emulation(recipe(name)), x
    for part in model:
        if isinstance(part, nn.Linear):
            y = Product.apply(y, part.weight, run, _PLACE)
            y = y if part.bias is None else y + part.bias
        else:
            y = F.relu(y)
    y.float().square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def of_torchao() -> Iterator[Witness]:
    """Yield the recipes that torchao emulates itself, in twelve settings."""
    for name in AO:
        pairs = []
        for dtype in (torch.float32, torch.bfloat16):
            for bias in (False, True):
                model, x = net(bias, dtype)
                theirs = by_torchao(name, model, x)
                pairs += list(zip(by_us(name, model, x), theirs, strict=True))
        yield compared(name, "torchao, Float8Linear with emulate=True", "a step, 4 settings", pairs)


def of_mx() -> Witness:
    """Return MXFP8's three GEMMs."""
    mx = import_module("torchao.prototype.moe_training.mxfp8_linear")
    configs = import_module("torchao.prototype.mx_formats.config")
    preference = import_module("torchao.quantization.quantize_.common").KernelPreference
    torch.manual_seed(0)
    pair = torch.randn(64, 96), torch.randn(128, 96)
    mine, theirs = ([t.clone().requires_grad_() for t in pair] for _ in range(2))
    e4, choice = torch.float8_e4m3fn, getattr(configs, "MXFP8Dim0CastKernelChoice", None)
    dims = (choice or mx.MXFP8Dim0CastKernelChoice).TORCH, getattr(configs, "MXFP8Dim1CastKernelChoice", None)
    cast1 = dims[1].TORCH if dims[1] is not None else None
    modes = preference.EMULATED, dims[0], cast1, configs.ScaleCalculationMode.RCEIL
    other = mx.mx_mm.apply(*theirs, e4, e4, e4, 32, *modes, False)
    own = Product.apply(*mine, Emulation(recipe("ao-mxfp8")), _PLACE)
    grad = torch.randn_like(own)
    own.backward(grad)
    other.backward(grad)
    pairs = [(own.detach(), other.detach()), *((a.grad, b.grad) for a, b in zip(mine, theirs, strict=True))]
    return compared("ao-mxfp8", "torchao, mx_mm emulated (RCEIL)", "a product and its two gradients", pairs)


def by_hand(x: np.ndarray, cast: Cast) -> np.ndarray:
    """Return a matrix cast as the recipe's source has it, written anew in numpy with ml_dtypes' formats.

    Loops over blocks, and shares no code with the emulator.
    """
    out, size = np.zeros_like(x), cast.block
    rows, columns = x.shape
    high = {Grain.TENSOR: (rows, columns), Grain.ROW: (1, columns), Grain.BLOCK: (1, size)}
    tall, wide = high.get(cast.grain, (size, size))
    amax = np.abs(x).max()
    for top in range(0, rows, tall):
        for left in range(0, columns, wide):
            part = x[top : top + tall, left : left + wide]
            out[top : top + tall, left : left + wide] = _block(part, cast, np.float32(amax))
    return out


def _block(part: np.ndarray, cast: Cast, amax: np.float32) -> np.ndarray:
    """Cast one block that shares a scale."""
    top, kind = np.float32(_TOPS[cast.format]), _FORMATS[cast.format]
    size = np.float32(np.abs(part).max())
    if cast.scaling is Scaling.NVFP4:
        whole = np.float32(amax / np.float32(448 * 6))
        scale = np.float32(np.clip(np.float32(size / top) / whole, 0, 448).astype(_FORMATS["e4m3"]))
        if scale == 0:
            return np.zeros_like(part)
        held = np.clip(part * np.float32((np.float32(1) / whole) / scale), -top, top).astype(kind)
        return held.astype(np.float32) * np.float32(scale * whole)
    if size == 0:
        return np.zeros_like(part)
    if cast.scaling is Scaling.E8M0_UP:
        factor = np.float32(2.0 ** -np.ceil(np.log2(np.float64(size) / 448.0)))
    else:
        factor = np.float32(np.float64(top) / np.float64(max(size, np.float32(cast.least))))
    if cast.scaling is Scaling.POWER_DOWN:
        factor = np.float32(2.0 ** np.floor(np.log2(np.float64(factor))))
    held = np.clip(part * factor, -top, top).astype(kind).astype(np.float32)
    return held / factor


def of_rules() -> Iterator[Witness]:
    """Yield every recipe's casts against the rule of its source, written anew."""
    torch.manual_seed(0)
    x = torch.randn(256, 256) * torch.randn(256, 1).exp() * torch.randn(1, 256).exp()
    for name, chosen in RECIPES.items():
        plain = {cast for cast in chosen.casts.values() if not cast.stochastic and not cast.hadamard}
        pairs = []
        for cast in plain:
            now = dataclasses.replace(cast, history=None)  # what a scale comes from is tested step by step
            pairs.append((rounded(x, now).values, torch.from_numpy(by_hand(x.numpy(), now))))
        yield compared(
            name,
            "its rule in numpy, formats of ml_dtypes",
            f"{plural(len(plain), 'cast')} of 256 x 256",
            pairs,
        )


def of_scaled_mm() -> Iterator[Witness]:
    """Yield products by torch's own scaled kernel, on the bytes."""
    torch.manual_seed(0)
    x, w = (torch.randn(rows, 64) * torch.randn(rows, 1).exp() for rows in (80, 96))
    for name in ("te-current", "ao-rowwise"):
        casts = recipe(name).casts
        a, b = (rounded(t, casts["fprop", kind]) for t, kind in ((x, "input"), (w, "weight")))
        scales = {"scale_a": (1 / a.scale).reshape(-1, 1), "scale_b": (1 / b.scale).reshape(1, -1)}
        if scales["scale_a"].numel() == 1:
            scales = {kind: scale.reshape(()) for kind, scale in scales.items()}
        low = [one.held.to(torch.float8_e4m3fn) for one in (a, b)]
        theirs = torch._scaled_mm(low[0], low[1].t(), **scales, out_dtype=torch.bfloat16)
        mine = Product.apply(x, w, Emulation(recipe(name)), _PLACE).bfloat16()
        yield compared(name, "torch._scaled_mm, bf16 out", "a product", [(mine, theirs)])


WITNESSES: tuple[Callable[[], Iterator[Witness]], ...] = (
    of_torchao,
    lambda: iter([of_mx()]),
    of_rules,
    of_scaled_mm,
)


def study() -> list[Witness]:
    """Return every comparison."""
    return [one for witness in WITNESSES for one in witness()]


def page(found: list[Witness]) -> str:
    """Return the table as Markdown."""
    lines = [
        "# Recipes: equal to what, and how near",
        "",
        "Every recipe's arithmetic against another implementation of it. `differ` counts elements that are not bit for",
        "bit the same, `furthest` is the largest difference, relative to the largest element. A product by",
        "`torch._scaled_mm` may differ in the last bit of bf16: it multiplies by the scales after it has summed.",
        "Stochastic rounding and the Hadamard transform of `te-nvfp4`, and the history of `te-delayed`, have laws in",
        "the tests instead. Written by `tests/studies/recipe_witnesses.py`.",
        "",
        "| recipe | equal to | compared | elements | differ | furthest |",
        "|---|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {one.recipe} | {one.equal_to} | {one.what} | {one.elements:,} | {one.differ:,} | {one.furthest:.1e} |"
        for one in sorted(found, key=lambda one: list(RECIPES).index(one.recipe))
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    REPORT.write_text(page(study()), encoding="utf-8")
