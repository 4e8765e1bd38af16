"""What came back from a GPU, held against this CPU on every run; and that a false file would be noticed.

While tests/golden is empty, the comparisons run on files that are made here, on the CPU, as a self-test makes them.
"""

import base64
import copy

import pytest
import torch
from parity import compare, trace
from parity_models import Case
from settling.fixed import exponents, levels, moved, numbers, roundings, spacing
from settling.golden import EMPTY, FIGURES, Golden, figures, known
from settling.holding import silicon, traces, zoo
from settling.keep import COMPLETE, Keep
from settling.models import MAKERS, RECURRENT, made
from settling.plan import STAGES, Scope
from settling.stages import silicon as silicon_stage
from settling.stages import traces as traces_stage
from settling.stages import zoo as zoo_stage
from settling.tracing import SCALE, _operations

GOLDEN = Golden()
needs_golden = pytest.mark.skipif(not GOLDEN, reason=EMPTY)
CUDA_BUILD = torch.backends.cuda.is_built()
MODULES = {"traces": traces_stage, "silicon": silicon_stage, "zoo": zoo_stage}


@needs_golden
def test_traces_are_those_of_cuda():
    assert traces(GOLDEN, known().get("traces")) == []


@needs_golden
def test_results_are_as_near_to_the_gpus_as_on_the_day():
    assert silicon(GOLDEN, known().get("silicon")) == []


@needs_golden
def test_verdicts_are_those_on_cuda():
    assert zoo(GOLDEN, list(GOLDEN.rows("zoo"))[:6], known().get("zoo")) == []


@pytest.mark.long
@needs_golden
def test_all_verdicts_are_those_on_cuda():
    assert zoo(GOLDEN, GOLDEN.rows("zoo"), known().get("zoo")) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files as a day with a GPU would bring them, made by the stages themselves on this CPU."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("golden")
    for name, module in MODULES.items():
        keep = Keep(out, name, {"device": "CPU", "torch": torch.__version__, "day": "2000-01-01"})
        for job in module.jobs(Scope(small=True, device="cpu")):
            keep.put(job.key, job.run())
        keep.end(COMPLETE, 1.0)
    return out


@pytest.fixture
def golden(folder):
    """Return files that a test may spoil."""
    found = Golden(folder, self_test=True)
    found.files = copy.deepcopy(found.files)
    return found


def test_right_files_are_held(golden):
    assert len(golden.rows("traces")) == 3
    assert traces(golden) == silicon(golden) == zoo(golden, golden.rows("zoo")) == []


def test_files_of_a_self_test_prove_nothing(folder):
    with pytest.raises(ValueError, match="expected files of a GPU"):
        Golden(folder)


def test_another_cast_is_noticed(golden):
    row = golden.rows("traces")["mlp float16"]
    at = next(at for at, kind in enumerate(row["kinds"]) if kind[0] == "_to_copy" and kind[2] == ["float16"])
    row["kinds"][at][2] = ["bfloat16"]
    assert "casts are others" in traces(golden)[0]
    golden.files["traces.json"]["machine"]["torch"] = "1.0.0"
    assert "casts are others" in traces(golden)[0]


def test_another_operation_is_noticed_where_the_version_is_the_same(golden):
    row = golden.rows("traces")["mlp float16"]
    at = next(at for at, kind in enumerate(row["kinds"]) if kind[0] == "addmm")
    row["kinds"][at][0] = "mm"
    assert "CUDA [mm(" in traces(golden)[0]
    golden.files["traces.json"]["machine"]["torch"] = "1.0.0"
    assert traces(golden) == []


def test_another_dtype_of_a_module_is_noticed(golden):
    row = golden.rows("traces")["cnn_batch_norm float16"]
    row["dtypes"]["1"] = "float32"
    assert "1: float32 on CUDA, float16 emulated" in traces(golden)[0]


def test_other_exponents_are_noticed(golden):
    row = golden.rows("traces")["cnn_batch_norm float16"]
    doubled = {str(int(power) + 1) if power.lstrip("-").isdigit() else power: count
               for power, count in row["exponents"]["1"].items()}  # fmt: skip
    row["exponents"]["1"] = doubled
    assert "of the elements lie in another power of two" in traces(golden)[0]


def test_another_result_is_noticed(golden):
    row = golden.rows("silicon")["attention | float16 | default"]
    raw = bytearray(base64.b64decode(row["values"]))
    raw[0] ^= 8 + 16  # 8 to 24 roundings of the first element
    row["values"] = base64.b64encode(raw).decode()
    assert "roundings apart" in silicon(golden)[0]


def test_another_verdict_is_noticed(golden):
    name = next(iter(golden.rows("zoo")))
    golden.rows("zoo")[name]["there"]["word"] = "unknown"
    assert "word: unknown on CUDA" in zoo(golden, [name])[0]
    assert zoo(golden, [name], {name: "a reason"}) == []


def test_a_known_difference_that_is_gone_is_noticed(golden):
    assert traces(golden, {"mlp float16": "a reason"}) == ["mlp float16: known to differ, and does not"]


def test_every_stage_has_figures_and_none_come_from_nothing(golden):
    assert FIGURES.keys() == {stage.name for stage in STAGES}
    assert figures(golden, "traces")[0].figure == "3 of 3 runs"
    assert figures(golden, "fp8") == []
    golden.rows("traces")["mlp float16"]["differences"].append("x")
    assert figures(golden, "traces")[0].figure == "2 of 3 runs"


def test_there_are_models_of_every_kind():
    assert len({maker.__name__ for maker in MAKERS}) >= 24
    assert {maker.__name__ for maker in MAKERS} >= RECURRENT


# Torch's checkpoint leaves autocast off where there is no GPU, and cuDNN's layers cannot be faked without one.
FAKED = [maker.__name__ for maker in MAKERS if maker.__name__ not in RECURRENT | {"checkpointed"}]


@pytest.mark.skipif(not CUDA_BUILD, reason="fake CUDA tensors need a CUDA build to require gradients")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FAKED)
def test_models_do_on_fake_cuda_what_is_expected_of_a_real_one(name, dtype):
    """The second witness of the traces: torch's own CUDA kernels for autocast, on tensors without storage."""
    result = compare(
        trace(Case(name, "", lambda: made(name)), dtype, "cuda"), _operations(name, "cpu", dtype)
    )
    assert result.same_casts
    scaling = {"CUDA [], CPU [mul.Tensor(float32) -> (float32)]"}  # by the loss scale, and its gradient
    assert {str(difference) for difference in result.differences if not difference.allowed} == scaling


def test_spacing_is_that_of_the_formats():
    values = torch.tensor([1.0, 1.5, 3.0, 1000.0], dtype=torch.float64)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for value in values:
            after = torch.nextafter(value.to(dtype), torch.tensor(torch.inf, dtype=dtype)).double()
            assert float(spacing(value[None], dtype)) == float(after - value)
    least = torch.tensor([2.0**-24], dtype=torch.float64)
    assert (
        float(spacing(least, torch.float16)) == 2.0**-24 == torch.finfo(torch.float16).smallest_normal / 2**10
    )


def test_roundings_count_last_bits():
    exact = torch.linspace(1.0, 1.9, 50, dtype=torch.float64)
    assert float(roundings(exact.half(), exact, torch.float16).max()) <= 0.5
    off = exact.half() + 3 * torch.finfo(torch.float16).eps
    assert float(roundings(off, exact.half().double(), torch.float16).max()) == 3
    assert roundings(torch.tensor([torch.inf, torch.nan, 1.0]), torch.tensor([torch.inf, torch.nan, torch.inf]),
                     torch.float16).tolist() == [0, 0, torch.inf]  # fmt: skip
    assert levels(torch.arange(101.0)) == {"median": 50, "p99": 99, "max": 100}


def test_exponents_are_counted_as_logarithms_say():
    values = torch.tensor([0.0, 1.0, -1.5, 2.0, 0.25, torch.inf, torch.nan, -torch.inf])
    assert exponents(values) == {"-2": 1, "0": 2, "1": 1, "zero": 1, "inf": 2, "nan": 1}
    assert moved({"0": 4}, {"0": 3, "1": 1}) == 0.25
    assert moved({"0": 4}, {"1": 4}) == 1


def test_numbers_are_the_same_everywhere():
    """Worked out by hand in Python's own integers."""
    expected = []
    for at in range(1, 6):
        mixed = ((at + 3_000_009) * 2_654_435_761) & 0xFFFF_FFFF
        mixed = ((mixed ^ (mixed >> 15)) * 2_246_822_519) & 0xFFFF_FFFF
        mixed ^= mixed >> 13
        expected.append((mixed & 0xFFFF) / 32768 - 1)
    assert numbers(5, seed=3).tolist() == expected
    assert -1 <= numbers(1000).min() < -0.9 < 0.9 < numbers(1000).max() < 1
    assert SCALE == 1024
