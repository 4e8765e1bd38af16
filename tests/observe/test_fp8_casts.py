"""Casts of FP8 and FP4 recipes against formats' laws, ml_dtypes, brute force and torchao."""

import itertools
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
import torch

from ampcheck.observe.fp8.casts import MAXIMA, e2m1, hadamard, in_format, rounded
from ampcheck.values.recipes import GEMMS, OPERANDS_OF, RECIPES, Cast, Grain, Scaling, recipe, recipes

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def wild(*shape, spread=3.0, seed=0):
    torch.manual_seed(seed)
    return (torch.randn(shape) * torch.randn(shape).mul(spread).exp()).bfloat16().float()


@pytest.mark.parametrize(
    ("name", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)]
)
def test_eight_bits_are_those_of_ml_dtypes(name, dtype):
    x = wild(4000, spread=6.0)
    top = float(ml_dtypes.finfo(dtype).max)
    assert MAXIMA[name] == top
    theirs = np.clip(x.numpy(), -top, top).astype(dtype).astype(np.float32)
    assert np.array_equal(in_format(x, name).numpy(), theirs)


def test_four_bits_are_the_nearest_with_ties_to_even():
    codes = torch.tensor(E2M1)
    x = torch.cat([torch.linspace(0, 7, 2001), codes, (codes[1:] + codes[:-1]) / 2])
    for value, held in zip(x.tolist(), e2m1(x).tolist(), strict=True):
        distance = [abs(value - code) for code in E2M1]
        nearest = [at for at, d in enumerate(distance) if d == min(distance)]
        best = nearest[0] if len(nearest) == 1 else next(at for at in nearest if at % 2 == 0)
        assert held == E2M1[best], value
    assert torch.equal(e2m1(-x), -e2m1(x))


def test_rounding_by_chance_has_no_bias():
    x = torch.full((200_000,), 2.3)
    held = e2m1(x, torch.Generator().manual_seed(0), by_chance=True)
    assert set(held.tolist()) == {2.0, 3.0}
    assert held.mean().item() == pytest.approx(2.3, abs=0.01)


def test_the_hadamard_transform_is_orthogonal():
    turn = hadamard(16)
    assert torch.allclose(turn @ turn.t(), torch.eye(16), atol=1e-6)


@pytest.mark.parametrize(
    "cast", sorted({c for r in RECIPES.values() for c in r.casts.values()}, key=str), ids=str
)
def test_laws_of_every_cast(cast):
    x = wild(200, 300)
    first = rounded(x, cast, generator=torch.Generator().manual_seed(0))
    assert first.values.shape == x.shape
    assert bool(torch.isfinite(first.values).all())
    if cast.history is None and cast.scaling is not Scaling.NVFP4:  # its block scales are rounded themselves
        assert first.scaled.abs().max() <= MAXIMA[cast.format] * 1.15
    assert not rounded(torch.zeros(3, 40), cast).values.any()
    if cast.stochastic or cast.hadamard:
        return
    assert torch.equal(rounded(-x, cast).values, -first.values)
    if cast.scaling is not Scaling.NVFP4:  # a power of two moves the scale and nothing else
        assert torch.equal(rounded(x * 2.0**20, cast).values, first.values * 2.0**20)
    if cast.scaling in (Scaling.POWER_DOWN, Scaling.E8M0_UP):
        mantissa, _ = torch.frexp(first.scale)
        assert bool((mantissa == 0.5).all())
        assert first.scaled.abs().max() <= MAXIMA[cast.format]  # rounded to this side, nothing saturates


def test_blocks_do_not_see_each_other():
    x = wild(64, 96)
    louder = x.clone()
    louder[:, :32] *= 2.0**30
    cast = Cast("e4m3", Grain.BLOCK, Scaling.E8M0_UP, 32)
    assert torch.equal(rounded(x, cast).values[:, 32:], rounded(louder, cast).values[:, 32:])
    rows = Cast("e4m3", Grain.ROW, Scaling.POWER_DOWN)
    louder = x.clone()
    louder[0] *= 2.0**30
    assert torch.equal(rounded(x, rows).values[1:], rounded(louder, rows).values[1:])


def test_matrices_of_a_batch_are_rounded_one_by_one():
    x = wild(3, 40, 48)
    for cast in {c for r in RECIPES.values() for c in r.casts.values() if not (c.stochastic or c.hadamard)}:
        alone = torch.stack([rounded(one, cast).values for one in x])
        assert torch.equal(rounded(x, cast).values, alone), cast


def test_names_of_recipes():
    assert {r.name for r in recipes("fp8")} == set(RECIPES)
    delayed = recipe("te-delayed:most_recent,history=4,margin=2")
    history = next(iter(delayed.casts.values())).history
    assert (history.most_recent, history.length, history.margin) == (True, 4, 2)
    for bad in ("te-nothing", "te-current:margin=1", "te-delayed:history=0", "te-delayed:most_recent=3"):
        with pytest.raises(ValueError, match="expected"):
            recipe(bad)
    for chosen in RECIPES.values():
        assert set(chosen.casts) <= {(gemm, name) for gemm in GEMMS for name in OPERANDS_OF[gemm]}


# torchao's own casts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "name"), [("RCEIL", "ao-mxfp8"), ("FLOOR", "ao-mxfp8:floor")])
def test_mx_casts_are_torchaos(mode, name):
    mx = import_module("torchao.prototype.mx_formats.mx_tensor")
    config = import_module("torchao.prototype.mx_formats.config")
    x = wild(64, 128).bfloat16()
    scale, data = mx.to_mx(x, torch.float8_e4m3fn, 32, config.ScaleCalculationMode[mode])
    theirs = mx.to_dtype(data, scale, torch.float8_e4m3fn, 32, torch.float32)
    assert torch.equal(
        rounded(x.float(), recipe(name).casts["fprop", "input"]).values, theirs.reshape(64, 128)
    )


def test_nvfp4_is_torchaos_where_no_block_is_far_below_the_largest():
    """torchao keeps block scales at 2**-6 at least, TransformerEngine has E4M3's subnormal ones below."""
    nv = import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    torch.manual_seed(0)
    x = torch.randn(64, 128).bfloat16()
    whole = nv.per_tensor_amax_to_scale(x.float().abs().max())
    theirs = nv.NVFP4Tensor.to_nvfp4(x.float(), per_tensor_scale=whole).dequantize(torch.float32)
    mine = rounded(x.float(), recipe("te-nvfp4").casts["fprop", "input"]).values
    assert torch.equal(mine, theirs)


def test_every_cast_is_exact_on_what_its_format_holds():
    for name, codes in (("e4m3", torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()),):
        held = codes[torch.isfinite(codes)]
        for grain, scaling in itertools.product(
            (Grain.TENSOR, Grain.ROW), (Scaling.EXACT, Scaling.POWER_DOWN)
        ):
            values = rounded(held.reshape(1, -1), Cast(name, grain, scaling)).values
            assert torch.equal(values, held.reshape(1, -1))
