"""Every path of `measure` against a brute-force count in plain Python, and against the laws of a record."""

import math
import struct
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ampcheck.observe import native
from ampcheck.observe.statistics import measure
from ampcheck.observe.statistics.measure import RECORD_WORDS, Arena

ZEROS, INFS, NANS, AMAX, SQUARES, CALLS = range(256, 262)
ISAS = measure.NATIVE.isas() if measure.NATIVE else []
PATHS = [*ISAS, "torch"]
SQUARES_TOLERANCE = 1e-6  # the documented bound
PYTHON_READS = {  # how someone else's code reads each format
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = list(PYTHON_READS)


@pytest.fixture(autouse=True)
def best_isa_afterwards() -> Iterator[None]:
    yield
    if ISAS:
        measure.NATIVE.force_isa(ISAS[0])


def arena(path: str) -> Arena:
    if path == "torch":
        return Arena(kernel="torch")
    measure.NATIVE.force_isa(path)
    return Arena(kernel="native")


def record(path: str, *tensors: Tensor) -> list[int]:
    where = arena(path)
    row = where.row()
    for tensor in tensors:
        where.add(row, tensor)
    return where.read()[row].tolist()


def elements(tensor: Tensor) -> list[float]:
    """The elements as Python floats, converted by numpy and ml_dtypes, not by torch or by us."""
    flat = tensor.resolve_neg().contiguous().reshape(-1)
    if not len(flat):
        return []
    raw = flat.view(INTEGERS[tensor.itemsize]).numpy().view(PYTHON_READS[tensor.dtype])
    return [float(x) for x in raw]


def word_of(x: float) -> int:
    if x == 0:
        return ZEROS
    if math.isinf(x):
        return INFS
    if math.isnan(x):
        return NANS
    exponent = math.frexp(x)[1] - 1  # 2**exponent <= |x| < 2**(exponent + 1)
    return min(max(exponent + 127, 0), 255)


def brute_force(values: list[float]) -> tuple[list[int], float, Fraction]:
    """Words 0..258, amax and the exact sum of squares."""
    counts = [0] * AMAX
    for x in values:
        counts[word_of(x)] += 1
    finite = [abs(x) for x in values if math.isfinite(x)]
    return counts, max(finite, default=0.0), sum((Fraction(x) ** 2 for x in finite), Fraction(0))


def as_float(word: int) -> float:
    return struct.unpack("d", struct.pack("q", word))[0]


def assert_is(got: list[int], values: list[float], calls: int = 1) -> None:
    assert_counts(got, brute_force(values), len(values), calls)


def assert_every_path_is(values: list[float], *tensors: Tensor) -> None:
    """Hold every path against one brute-force count."""
    counted = brute_force(values)
    for path in PATHS:
        assert_counts(record(path, *tensors), counted, len(values), len(tensors))


def assert_counts(got: list[int], counted: tuple[list[int], float, Fraction], n: int, calls: int) -> None:
    counts, amax, squares = counted
    assert got[:AMAX] == counts
    assert as_float(got[AMAX]) == amax
    assert got[CALLS] == calls
    total = as_float(got[SQUARES])
    if squares > Fraction(2) ** 1023:
        assert total > 2.0**1000  # near float64's edge, where it may round to infinity
    else:
        lost = Fraction(2) ** -1022 * n  # float64's own underflow
        assert abs(Fraction(total) - squares) <= squares * Fraction(SQUARES_TOLERANCE) + lost


def random_bits(dtype: torch.dtype, n: int, seed: int) -> Tensor:
    raw = np.random.default_rng(seed).integers(0, 256, n * dtype.itemsize, dtype=np.uint8)
    return torch.frombuffer(raw, dtype=dtype) if n else torch.empty(0, dtype=dtype)


def shaped(dtype: torch.dtype, n: int, seed: int, kind: str) -> Tensor:
    """Tensors as training makes them, by how many exponents they span."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    values = {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "mask": np.where(normal > 0, -np.inf, normal),
        "wide": normal * np.exp2(rng.uniform(-30, 30, n)),
        "huge": normal * 1e38,
        "tiny": normal * 1e-40,
        "small": normal * 2.0**-70,
        "subnormal half": normal * 2.0**-18,
    }[kind]
    return torch.from_numpy(values).to(dtype)


KINDS = ["normal", "relu", "mask", "wide", "huge", "tiny", "small", "subnormal half"]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    width = dtype.itemsize * 8
    patterns = draw(st.lists(st.integers(0, 2**width - 1), max_size=200))
    raw = b"".join(p.to_bytes(width // 8, "little") for p in patterns)
    return (
        torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype)
        if raw
        else torch.empty(0, dtype=dtype)
    )


def test_the_kernel_was_built_where_there_is_a_compiler() -> None:
    assert ISAS[-1:] in ([], ["scalar"])
    assert Arena().native() is bool(ISAS)
    assert not Arena(kernel="torch").native()


#: How long an example takes depends on what else the machine does, and says nothing about a count.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(tensor=tensors())
def test_any_bits(tensor: Tensor) -> None:
    assert_every_path_is(elements(tensor), tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length_around_a_block(dtype: torch.dtype) -> None:
    for n in (0, 1, 63, 64, 65, 4095, 4097):
        tensor = random_bits(dtype, n, seed=n)
        assert_every_path_is(elements(tensor), tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_values_as_training_makes_them(kind: str) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = shaped(dtype, 9000, 3, kind)
        assert_every_path_is(elements(tensor), tensor)


def test_a_single_value_at_an_edge_of_float32() -> None:
    for value in (0x7FFFFF, 0x800000, 1, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0):
        tensor = torch.tensor([0x3F800000, value], dtype=torch.int32).view(torch.float32)
        assert_every_path_is(elements(tensor), tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_exponent_of_the_format_has_its_word(dtype: torch.dtype) -> None:
    bits = dtype.itemsize * 8
    step = max(1, 2**bits // 5000)
    raw = np.arange(0, 2**bits, step, dtype=f"uint{max(bits, 64)}").astype(f"uint{bits}")
    tensor = torch.from_numpy(raw.view(np.uint8).copy()).view(dtype)
    assert_every_path_is(elements(tensor), tensor)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flushing_subnormals_changes_nothing(path: str, dtype: torch.dtype) -> None:
    tensor = random_bits(dtype, 5000, seed=1)
    small = shaped(torch.float32, 5000, 1, "tiny").to(dtype) if dtype.itemsize > 1 else tensor
    before = record(path, tensor, small)
    sampled = arena(path).sample(small, 100)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot underflow subnormals")
    try:
        after = record(path, tensor, small)
        sampled_after = arena(path).sample(small, 100)
    finally:
        torch.set_flush_denormal(False)
    assert after == before
    assert torch.equal(sampled.view(torch.int64), sampled_after.view(torch.int64))


@unhurried
@given(first=tensors(), second=tensors())
def test_adding_twice_is_adding_the_concatenation(first: Tensor, second: Tensor) -> None:
    second = second.to(torch.float32).to(first.dtype)
    assert_every_path_is(elements(torch.cat([first, second])), first, second)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.view(30, 40).T,
    "permuted": lambda x: x.view(10, 4, 30).permute(2, 0, 1),
    "channels last": lambda x: x.view(2, 5, 10, 12).to(memory_format=torch.channels_last),
    "every third": lambda x: x[::3],
    "columns": lambda x: x.view(30, 40)[:, 3:17],
    "diagonal": lambda x: x.view(30, 40).diagonal(),
    "offset": lambda x: x[7:],
    "one of many": lambda x: x.view(30, 40)[3:4, 5:6],
    "no dimensions": lambda x: x[11],
    "windows": lambda x: x.unfold(0, 8, 3),
    "empty": lambda x: x.view(30, 40)[:, :0],
    "expanded": lambda x: x[:20].view(20, 1).expand(20, 7),
    "one element expanded": lambda x: x[3].expand(5, 6, 7),
    "expanded and strided": lambda x: x[:40:2].view(4, 5).T[:, None].expand(5, 3, 4),
    "specials expanded": lambda x: x.new_tensor([0.0, -0.0, math.inf, math.nan, 3.0])[:, None].expand(5, 3),
    "lazily negated": torch._neg_view,
    "expanded to nothing": lambda x: x[:20].view(20, 1).expand(20, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_counts_the_elements_it_shows(layout: str) -> None:
    tensor = LAYOUTS[layout](random_bits(torch.float32, 1200, seed=5))
    assert_every_path_is(elements(tensor), tensor)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_is_in_logical_order_in_any_layout(layout: str) -> None:
    tensor = LAYOUTS[layout](random_bits(torch.float16, 1200, seed=6))
    values = elements(tensor)
    for path in PATHS:
        for k in (0, 1, 17, 5000):
            got = arena(path).sample(tensor, k)
            expected = [values[place] for place in places(len(values), min(k, len(values)))]
            assert got.dtype == torch.float64
            np.testing.assert_array_equal(got.numpy(), expected, err_msg=f"{path}, {k}")


def places(n: int, k: int) -> list[int]:
    edges = [i * n // k for i in range(k + 1)] if k else [0]
    spread = [((i + 1) * 2654435761 % 2**32) // 256 for i in range(k)]
    return [low + s % (high - low) for low, high, s in zip(edges, edges[1:], spread, strict=False)]


@pytest.mark.parametrize("columns", [16, 60, 384, 1000])
def test_a_sample_meets_the_columns_of_a_matrix_evenly(columns: int) -> None:
    seen = {place % columns for place in places(512 * columns, 128)}
    assert len(seen) > 0.6 * min(columns, 128)  # equal steps would meet one to four of them


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sample_is_exact(path: str, dtype: torch.dtype) -> None:
    tensor = random_bits(dtype, 3000, seed=8)
    got = arena(path).sample(tensor, 3000).numpy()
    expected = np.array(elements(tensor))
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    assert (np.signbit(got) == np.signbit(expected))[known].all()  # zeros keep their sign


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_are_two_elements_lazy_bits_included(path: str, dtype: torch.dtype) -> None:
    z = torch.randn(60, dtype=dtype, generator=torch.Generator().manual_seed(0))
    parts = elements(torch.view_as_real(z))
    for same in (z, z.conj(), z.view(6, 10).T, z.view(6, 10).mH):
        assert_is(record(path, same), parts)
    assert_is(record(path, z.conj().imag), elements(z.imag))
    np.testing.assert_array_equal(arena(path).sample(z.conj(), 120).numpy()[1::2], [-x for x in parts[1::2]])
    np.testing.assert_array_equal(arena(path).sample(z.conj().imag, 60).numpy(), [-x for x in parts[1::2]])


def test_a_large_view_with_gaps_is_one_call() -> None:
    tensor = torch.ones(3, 1 << 19)[:, ::2]
    for path in PATHS:
        got = record(path, tensor)
        assert got[127] == tensor.numel()
        assert got[CALLS] == 1


@pytest.mark.skipif(not ISAS, reason="torch operations have torch's own threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_threads_changes_no_count(dtype: torch.dtype) -> None:
    tensor = random_bits(dtype, (1 << 20) + 1, seed=2)  # one more than two equal shares
    before = torch.get_num_threads()
    got = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            got.append(record(ISAS[0], tensor))
    finally:
        torch.set_num_threads(before)
    assert got[0][:SQUARES] == got[1][:SQUARES] == record("torch", tensor)[:SQUARES]
    assert got[1] == got[2]  # sums too are the same for the same number of threads


@pytest.mark.parametrize("path", PATHS)
def test_rows_keep_apart_and_survive_growth(path: str) -> None:
    where = arena(path)
    rows = [where.row() for _ in range(1500)]
    for row in rows:
        where.add(row, torch.full((row % 7 + 1,), 2.0 ** (row % 100)))
    got = where.read()
    assert got.shape == (1500, RECORD_WORDS)
    for row in rows:
        assert got[row, 127 + row % 100] == row % 7 + 1
        assert got[row, :AMAX].sum() == row % 7 + 1


@pytest.mark.parametrize("path", PATHS)
def test_observing_leaves_no_trace_on_the_tensor(path: str) -> None:
    tensor = torch.randn(40, 50, requires_grad=True)
    state = torch.get_rng_state()
    version = tensor._version
    bits = tensor.detach().clone()
    record(path, tensor, tensor.T, tensor[:, ::2], tensor * 1)
    arena(path).sample(tensor, 30)
    assert torch.equal(tensor, bits)
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)
    assert tensor.grad is None


@pytest.mark.parametrize("path", PATHS)
def test_inference_mode_may_begin_and_end_anywhere(path: str) -> None:
    where = arena(path)
    with torch.inference_mode():
        row = where.row()
        where.add(row, torch.ones(3))
    where.add(row, torch.ones(4, requires_grad=True))
    assert where.read()[row, 127] == 7


def test_the_torch_path_is_the_same_for_other_sizes_of_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_bits(torch.float32, 1000, seed=9)
    whole = record("torch", tensor)
    monkeypatch.setattr(measure, "_CPU_ELEMENTS", 64)
    parts = record("torch", tensor)
    assert parts[:SQUARES] == whole[:SQUARES]
    assert as_float(parts[SQUARES]) == pytest.approx(as_float(whole[SQUARES]), rel=1e-12)


@pytest.mark.skipif(not ISAS, reason="no compiled kernel")
def test_squares_stay_exact_enough_where_float32_would_not() -> None:
    values = torch.full((4096,), 1e19)
    values[1:] = 1e-19
    for tensor in (values, torch.full((5000,), 3e38), torch.full((5000,), 1e-45), torch.full((9000,), 1e-22)):
        assert_is(record(ISAS[0], tensor), elements(tensor))


def test_what_cannot_be_measured_is_said() -> None:
    for path in PATHS:
        with pytest.raises(TypeError, match=r"floating-point or complex tensor, got torch\.int64"):
            record(path, torch.arange(3))
    with pytest.raises(RuntimeError, match="compiled kernel for device 'meta', got none"):
        Arena("meta", kernel="native")


@pytest.mark.skipif(not ISAS, reason="no compiled kernel")
def test_the_kernel_refuses_what_would_crash_it() -> None:
    where = arena(ISAS[0])
    with pytest.raises(ValueError, match="allocated memory"):
        where._measure(0, 5, 0, where._pointers[where.row()], 1, 1)
    with pytest.raises(ValueError, match="dtype code 99"):
        where._measure(8, 5, 99, where._pointers[0], 1, 1)
    with pytest.raises(TypeError, match="expected 6 integers, got 2"):
        where._measure(8, 5)
    with pytest.raises(ValueError, match="one of isas"):
        measure.NATIVE.force_isa("sse")


@pytest.mark.parametrize("held", [{}, {"INTERFACE": native.INTERFACE + 1}])
def test_an_extension_built_from_other_sources_is_left_alone(monkeypatch, held):
    monkeypatch.delenv("AMPCHECK_COMPILED", raising=False)
    monkeypatch.setattr(native.sysconfig, "get_config_var", lambda _: 0)  # wherever this runs
    monkeypatch.setitem(sys.modules, "ampcheck.observe._exphist", SimpleNamespace(**held))
    assert native.load() is None
    right = SimpleNamespace(INTERFACE=native.INTERFACE)
    monkeypatch.setitem(sys.modules, "ampcheck.observe._exphist", right)
    assert native.load() is right
