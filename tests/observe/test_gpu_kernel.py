"""The Triton kernels against brute force and the CPU's paths: interpreted anywhere, on a device where one is.

Whether Triton interprets is settled when it is loaded, so `test_interpreted` runs this file again in another
process; there "cpu" stands for Triton's interpreter. Without a GPU the kernels are also compiled for one.
"""

import logging
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from test_measure import (
    AMAX,
    CALLS,
    DTYPES,
    KINDS,
    LAYOUTS,
    SQUARES,
    as_float,
    assert_is,
    brute_force,
    elements,
    random_bits,
    shaped,
    tensors,
)
from torch import Tensor

from ampcheck.observe.statistics import gpu
from ampcheck.observe.statistics.measure import Arena

triton = pytest.importorskip("triton", reason="Triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BLOCK = 4096
ALONE = 8 * BLOCK  # up to here one program measures a tensor
SQUARES_BOUND = Fraction(1, 10**12)  # the documented one
interpreted = pytest.mark.skipif(not INTERPRETED, reason="run in Triton's interpreter by test_interpreted")
no_device = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")
on_gpu = [pytest.mark.gpu, no_device]
WHERE = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=on_gpu)]
)
# The interpreter's arithmetic is numpy's, which warns of a float64 whose square is no float64.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


def record(device: str, *added: Tensor) -> list[int]:
    where = Arena(device, kernel="triton")
    row = where.row()
    for tensor in added:
        where.add(row, tensor)
    return where.read()[row].tolist()


def on_cpu(kernel: str, tensor: Tensor) -> list[int]:
    where = Arena(kernel=kernel)
    row = where.row()
    where.add(row, tensor.cpu())
    return where.read()[row].tolist()


def assert_agrees(got: list[int], tensor: Tensor) -> None:
    """Compare with both paths of the CPU, which test_measure holds to a brute-force count."""
    for kernel in ("auto", "torch"):
        expected = on_cpu(kernel, tensor)
        assert got[:SQUARES] == expected[:SQUARES]
        assert got[CALLS] == expected[CALLS]
    total, exact = as_float(got[SQUARES]), as_float(expected[SQUARES])
    assert total == pytest.approx(exact, rel=1e-12) or (math.isinf(total) and math.isinf(exact))


@pytest.mark.skipif(INTERPRETED, reason="this is that run")
def test_interpreted() -> None:
    arguments = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-rs", str(Path(__file__).resolve())]
    run = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": "", "CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert "Triton's interpreter by" not in run.stdout  # nothing that belongs there was skipped


@WHERE
@settings(max_examples=60)
@given(tensor=tensors())
def test_any_bits(device: str, tensor: Tensor) -> None:
    assert_is(record(device, tensor.to(device)), elements(tensor))


@WHERE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, ALONE, ALONE + 1, ALONE + 3 * BLOCK])
def test_every_length_around_a_block(device: str, dtype: torch.dtype, n: int) -> None:
    tensor = random_bits(dtype, n, seed=n)
    assert_agrees(record(device, tensor.to(device)), tensor)


@WHERE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_as_training_makes_them(device: str, kind: str, dtype: torch.dtype) -> None:
    tensor = shaped(dtype, 9000, 3, kind)
    got = record(device, tensor.to(device))
    assert_is(got, elements(tensor))
    exact = brute_force(elements(tensor))[2]
    assert abs(Fraction(as_float(got[SQUARES])) - exact) <= exact * SQUARES_BOUND


@WHERE
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_every_number_of_the_format(device: str, dtype: torch.dtype) -> None:
    codes = torch.arange(2 ** (8 * dtype.itemsize))
    tensor = codes.to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).view(dtype)
    assert_is(record(device, tensor.to(device)), elements(tensor))


@WHERE
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_counts_the_elements_it_shows(device: str, layout: str) -> None:
    tensor = random_bits(torch.float32, 1200, seed=5)
    got = record(device, LAYOUTS[layout](tensor.to(device)))
    assert_is(got, elements(LAYOUTS[layout](tensor)))


@WHERE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [1, 3, 16])
def test_a_tensor_may_begin_anywhere(device: str, dtype: torch.dtype, start: int) -> None:
    tensor = random_bits(dtype, 2 * BLOCK + 50, seed=4)
    assert_agrees(record(device, tensor.to(device)[start:]), tensor[start:])


@WHERE
def test_a_large_expanded_tensor_is_weighed(device: str) -> None:
    tensor = random_bits(torch.bfloat16, ALONE + 5, seed=12)
    got = record(device, tensor.to(device)[:, None].expand(-1, 1000))
    single = on_cpu("auto", tensor)
    assert got[:AMAX] == [1000 * count for count in single[:AMAX]]
    assert got[AMAX] == single[AMAX]
    assert as_float(got[SQUARES]) == pytest.approx(1000 * as_float(single[SQUARES]), rel=1e-6)


@WHERE
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_are_two_elements(device: str, dtype: torch.dtype) -> None:
    z = torch.randn(60, dtype=dtype, generator=torch.Generator().manual_seed(0))
    parts = elements(torch.view_as_real(z))
    for same in (z, z.conj(), z.view(6, 10).T, z.view(6, 10).mH):
        assert_is(record(device, same.to(device)), parts)


@WHERE
def test_adding_twice_is_adding_the_concatenation(device: str) -> None:
    first, second = random_bits(torch.float32, 5000, seed=1), random_bits(torch.float32, ALONE + 7, seed=2)
    got = record(device, first.to(device), second.to(device))
    assert got[CALLS] == 2
    got[CALLS] = 1
    assert_agrees(got, torch.cat([first, second]))


@WHERE
def test_many_tensors_share_launches_and_keep_apart(device: str) -> None:
    sizes = [0, 1, 17, BLOCK, ALONE, ALONE + 1]
    added = [random_bits(dtype, n, seed=n + 1) for dtype in DTYPES for n in sizes]
    added += [t[1:] for t in added if len(t) > 1]
    added += [random_bits(torch.float32, 1200, seed=3).view(30, 40)[:, ::3], torch.ones(7).expand(4, 7)]
    there = [
        t.to(device)[1:] if t.storage_offset() else t.to(device) for t in added if not t.storage_offset()
    ]
    there += [t.to(device) for t in added if t.storage_offset()]
    where = Arena(device, kernel="triton")
    rows = [where.row() for _ in there]
    where.add_all(rows, there)
    got = where.read().tolist()
    assert len(got) == len(there) > 60
    for one, tensor in zip(got, there, strict=True):
        assert_agrees(one, tensor)


@WHERE
@pytest.mark.parametrize("n", [BLOCK + 9, ALONE + 9])
def test_equal_tensors_give_equal_bits(device: str, n: int) -> None:
    tensor = shaped(torch.float32, n, 3, "wide").to(device)
    assert record(device, tensor) == record(device, tensor) == record(device, tensor.clone())


@WHERE
def test_what_is_written_later_is_not_measured(device: str) -> None:
    where = Arena(device, kernel="triton")
    before = torch.full((ALONE + 1,), 4.0, device=device)
    where.add(where.row(), before)
    before.fill_(0.0)
    where.add(where.row(), torch.full((1000, 1000), 2.0, device=device)[:, ::2])  # a copy, freed at once
    torch.full((1000, 500), 7.0, device=device)
    got = where.read()
    assert got[0, 129] == ALONE + 1
    assert got[1, 128] == 500_000


@WHERE
def test_observing_leaves_no_trace_on_the_tensor(device: str) -> None:
    tensor = torch.randn(40, 50, device=device, requires_grad=True)
    state = torch.get_rng_state(), tensor._version, tensor.detach().clone()
    record(device, tensor, tensor.T, tensor[:, ::2])
    assert torch.equal(tensor, state[2])
    assert tensor._version == state[1]
    assert torch.equal(torch.get_rng_state(), state[0])


@contextmanager
def no_waits() -> Iterator[None]:
    """Have torch raise where the host waits for the device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@no_device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_waits_for_the_device(layout: str) -> None:
    tensor = LAYOUTS[layout](torch.ones(1200, device="cuda"))
    large = torch.ones(3 * ALONE, device="cuda", dtype=torch.bfloat16)
    where = Arena("cuda")
    with no_waits():
        where.add(where.row(), tensor)
        where.add(where.row(), large)
        where.add_all([where.row(), where.row(), where.row()], [tensor, large, large[:30]])
    assert where.native()
    assert where.read()[:, CALLS].tolist() == [1] * 5


@pytest.mark.gpu
@no_device
def test_a_side_stream_is_ordered_with_its_records() -> None:
    where = Arena("cuda")
    row = where.row()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        where.add(row, torch.full((1000,), 2.0, device="cuda"))
    assert where.read()[row, 128] == 1000


@pytest.mark.gpu
@no_device
def test_cuda_tensors_are_measured_by_triton() -> None:
    assert Arena("cuda").native()
    assert not Arena("cuda", kernel="torch").native()


COMPILED: dict[str, Callable[[str], bool]] = {
    "loads 16 bytes": lambda ptx: "ld.global.v4" in ptx or "ld.global.v2.b64" in ptx,
    "keeps subnormals": lambda ptx: "ftz" not in ptx,
    "squares in float64": lambda ptx: "f64" in ptx,
}


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is built for Linux")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_compile_for_hopper(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ptx = compiled(DTYPES.index(dtype)).asm["ptx"]
    assert {name: test(ptx) for name, test in COMPILED.items()} == dict.fromkeys(COMPILED, True)


def compiled(dtype: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ampcheck.observe.statistics import gpu_kernel
    from ampcheck.observe.statistics.measure import _CODES

    code = _CODES[DTYPES[dtype]]
    constants = {"KIND": code, "ALIGNED": True, "TABLE": False}
    numbers = dict.fromkeys(("data", "n", "record", "weight", "partials"), "i64")
    source = ASTSource(gpu_kernel.measure, numbers | dict.fromkeys(constants, "constexpr"), constants)
    options = {"num_warps": gpu_kernel.WARPS, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.skipif(INTERPRETED, reason="there Triton works on the CPU")
def test_where_triton_does_not_work_one_note_is_made(caplog: pytest.LogCaptureFixture) -> None:
    gpu._reason_against.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert gpu.launcher(torch.device("cpu"), required=False) is None
        with pytest.raises(RuntimeError, match=r"expected Triton to work on 'cpu', got .*TRITON_INTERPRET"):
            Arena("cpu", kernel="triton")
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "torch operations" in caplog.text


def test_triton_is_loaded_by_the_first_cuda_arena_only() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"  # from here on importing it raises
        "import torch, logging; import ampcheck.observe.recorder\n"
        "from ampcheck.observe.statistics.measure import Arena\n"
        "a = Arena(); a.add(a.row(), torch.ones(3)); assert 'ampcheck.observe.statistics.gpu' not in sys.modules\n"
        "from ampcheck.observe.statistics.gpu import launcher\n"
        "assert launcher(torch.device('cuda', 0), required=False) is None\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("slower: ModuleNotFoundError: import of triton halted") == 1
