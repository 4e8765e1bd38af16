"""Formats against torch, ml_dtypes and the standards."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from ampcheck.values.formats import BF16, BY_DTYPE, E4M3, E5M2, FORMATS, FP16, FP32, SHORT_DTYPE, TF32, Format

TORCH = {
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
}
ML = {
    FP32: np.float32,
    FP16: np.float16,
    BF16: ml_dtypes.bfloat16,
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
}


def name(fmt: Format) -> str:
    return fmt.name


@pytest.mark.parametrize("fmt", TORCH, ids=name)
def test_constants_agree_with_torch(fmt: Format) -> None:
    info = torch.finfo(TORCH[fmt])
    assert fmt.max == info.max
    assert fmt.smallest_normal == info.smallest_normal
    assert fmt.epsilon == info.eps


@pytest.mark.parametrize("fmt", ML, ids=name)
def test_constants_agree_with_ml_dtypes(fmt: Format) -> None:
    info = ml_dtypes.finfo(ML[fmt])
    assert fmt.max == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.epsilon == float(info.eps)
    assert fmt.precision == info.nmant + 1
    assert fmt.min_exponent == info.minexp
    assert fmt.max_exponent == math.frexp(float(info.max))[1] - 1


def test_tf32_is_fp32_with_ten_bits_of_fraction() -> None:
    assert (TF32.min_exponent, TF32.max_exponent) == (FP32.min_exponent, FP32.max_exponent)
    assert TF32.precision == FP16.precision
    bits = np.array([0x7F7FE000], dtype=np.uint32).view(np.float32)  # all of exponent 254, ten ones
    assert float(bits[0]) == TF32.max


@pytest.mark.parametrize("fmt", TORCH, ids=name)
def test_every_number_of_a_small_format_survives_and_its_neighbours_do_not(fmt: Format) -> None:
    for edge in (fmt.max, fmt.smallest_normal, fmt.smallest_subnormal):
        assert torch.tensor(edge, dtype=torch.float64).to(TORCH[fmt]).double().item() == edge
    if fmt is not FP32:
        tiny = torch.tensor([fmt.smallest_subnormal / 2, fmt.smallest_subnormal * 0.75])
        assert tiny.to(TORCH[fmt]).double().tolist() == [0.0, fmt.smallest_subnormal]


@pytest.mark.parametrize("fmt", [FP16, BF16, E5M2, E4M3], ids=name)
def test_overflow_begins_where_a_real_cast_overflows(fmt: Format) -> None:
    edge, up = np.float32(fmt.overflow_from), np.float32(np.inf)
    values = np.array([fmt.max, np.nextafter(edge, -up), edge, np.nextafter(edge, up)], dtype=np.float32)
    with np.errstate(over="ignore"):
        real = values.astype(ML[fmt]).astype(float)
    overflows = [fmt.overflows(float(value)) for value in values]
    assert overflows == (~np.isfinite(real)).tolist()
    assert overflows in ([False, False, True, True], [False, False, False, True])


def test_torch_saturates_where_e4m3_overflows_and_agrees_below() -> None:
    values = np.ldexp(np.arange(1, 4096, dtype=np.float32) / 2048, 8)
    saturated = torch.from_numpy(values).to(torch.float8_e4m3fn).double().numpy()
    real = values.astype(ML[E4M3]).astype(float)
    overflows = np.array([E4M3.overflows(float(value)) for value in values])
    assert overflows.any()
    assert (saturated[overflows] == E4M3.max).all()
    assert (saturated[~overflows] == real[~overflows]).all()


def test_every_dtype_name_is_one_of_torch() -> None:
    for dtype, fmt in BY_DTYPE.items():
        known = getattr(torch, dtype)
        real = known.to_real() if known.is_complex else known
        assert torch.finfo(real).max == fmt.max
    assert all(hasattr(torch, dtype) for dtype in SHORT_DTYPE)
    assert [fmt.name for fmt in FORMATS.values()] == list(FORMATS)
