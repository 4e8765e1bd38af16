"""The fixture precision_benchmark under pytest-benchmark: samples, gates, JSON, and manners."""

import json
import statistics
import subprocess
import sys
from importlib.util import find_spec

import forked
import pytest

pytest_plugins = ["pytester"]

TARGET = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))

def batch(batch_size=16):
    return torch.randn(batch_size, 32), torch.randint(0, 8, (batch_size,))

def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
TEST = """
import json
import pytest
from ampcheck.bench.request import Request

QUICK = Request(parts=("time", "memory"), budget=0.2)

@pytest.mark.benchmark(group="steps")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_step(precision_benchmark, precision):
    found = precision_benchmark("net.py", precision, settings=QUICK)
    assert found.row.precision == precision
    print("SAMPLES", json.dumps(found.row.time and list(found.row.time.samples)))
"""


@pytest.fixture
def folder(pytester, monkeypatch):
    # Or pytest-benchmark takes the run for a worker's, and measures nothing.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(net=TARGET, test_steps=TEST)
    pytester.makeini("[pytest]\naddopts = -p ampcheck.bench.pytest_plugin")
    monkeypatch.setattr(pytester, "_getpytestargs", lambda: (*forked.python(), "-mpytest"))
    return pytester


def samples(result):
    return [json.loads(line.partition("SAMPLES ")[2]) for line in result.outlines if "SAMPLES " in line]


def test_pytest_benchmark_holds_the_very_samples_and_agrees_on_their_statistics(folder):
    result = folder.runpytest_subprocess("-s", "--strict-markers", "--benchmark-json=out.json")
    result.assert_outcomes(passed=2)
    data = json.loads((folder.path / "out.json").read_text(), parse_constant=pytest.fail)
    entered = [entry for entry in data["benchmarks"] if "(" not in entry["name"]]
    assert [entry["params"] for entry in entered] == [{"precision": "fp32"}, {"precision": "bf16"}]
    for entry, given in zip(entered, samples(result), strict=True):
        stats = entry["stats"]
        assert stats["data"] == pytest.approx(given, rel=1e-9)
        assert stats["rounds"] == len(given) >= 4
        assert stats["median"] == pytest.approx(entry["extra_info"]["ampcheck"]["median_s"], rel=1e-6)
        assert stats["median"] == pytest.approx(statistics.median(given), rel=1e-9)
        assert entry["group"] == "steps"
        assert entry["options"]["timer"] == "ampcheck_replay"
        assert entry["extra_info"]["ampcheck"]["memory_ratio"] is not None
    assert data["machine_info"]["torch"]["device"]
    result.stdout.fnmatch_lines(["*= ampcheck bench =*", "*test_step?bf16?: bf16: *"])


def test_every_precision_of_one_call_is_in_the_json_with_fp32_beside_it(folder):
    folder.makepyfile(
        test_steps="""
        import json
        from ampcheck.bench.request import Request

        def test_all(precision_benchmark):
            quick = Request(parts=("time", "memory"), budget=0.1)
            found = precision_benchmark("net.py", ["bf16", "amp"], settings=quick)
            assert list(found.frame().precision) == ["fp32", "amp", "bf16"]
            print("SAMPLES", json.dumps({row.precision: row.time.samples for row in found.case.rows}))
        """
    )
    result = folder.runpytest_subprocess("-s", "--benchmark-json=out.json", "--benchmark-save=one")
    result.assert_outcomes(passed=1)
    (given,) = samples(result)
    entries = json.loads((folder.path / "out.json").read_text())["benchmarks"]
    assert [entry["name"] for entry in entries] == ["test_all", "test_all (fp32)", "test_all (amp)"]
    assert {entry["group"] for entry in entries} == {"batch 16"}
    for entry in entries:
        record = entry["extra_info"]["ampcheck"]
        assert entry["stats"]["data"] == pytest.approx(given[record["precision"]], rel=1e-9)
        assert entry["stats"]["median"] == pytest.approx(statistics.median(entry["stats"]["data"]), rel=1e-9)
        assert record["memory_ratio"] is not None
    compared = folder.run(sys.executable, "-m", "pytest_benchmark", "compare")
    compared.stdout.fnmatch_lines(["*test_all (fp32)*"])


def test_a_histogram_without_pygal_is_refused_before_anything_is_measured(folder):
    if find_spec("pygal") is not None:
        pytest.skip("pygal is installed")
    result = folder.runpytest_subprocess("--benchmark-histogram=h")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*--benchmark-histogram needs pygal*"])


def test_saved_runs_can_be_compared(folder):
    folder.runpytest_subprocess("--benchmark-save=first", "--benchmark-storage=kept").assert_outcomes(
        passed=2
    )
    result = folder.runpytest_subprocess("--benchmark-compare", "--benchmark-storage=kept")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_step?bf16? (0001_first)*"])


def test_a_gate_fails_the_test_and_says_by_how_much(folder):
    result = folder.runpytest_subprocess("--ampcheck-min-speedup=1000", "--ampcheck-max-memory=0.01")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["batch *: bf16 is * times as fast as FP32 *, expected at least 1000"])
    result.stdout.fnmatch_lines(["batch *: bf16 needs * times the memory of FP32, expected at most 0.01"])
    assert "Traceback" not in result.stdout.str()


def test_a_gate_of_the_ini_file_holds(folder):
    folder.makeini("[pytest]\naddopts = -p ampcheck.bench.pytest_plugin\nampcheck_max_memory = 0.01")
    folder.runpytest_subprocess().assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("limit", ["nan", "-1", "much"])
def test_a_limit_that_nothing_could_break_is_refused(folder, limit):
    folder.makeini(f"[pytest]\naddopts = -p ampcheck.bench.pytest_plugin\nampcheck_max_memory = {limit}")
    result = folder.runpytest_subprocess()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [f"*expected zero or a number above it in the ini key ampcheck_max_memory, got '{limit}'"]
    )


def test_disabled_benchmarks_take_no_time_and_gates_on_memory_still_hold(folder):
    result = folder.runpytest_subprocess("-s", "--benchmark-disable", "--ampcheck-max-memory=0.01")
    result.assert_outcomes(passed=1, failed=1)
    assert samples(result)[0] is None


def test_workers_measure_no_time_and_a_gate_on_it_fails(folder):
    folder.runpytest_subprocess("-n1", "-W", "ignore").assert_outcomes(passed=2)
    result = folder.runpytest_subprocess("-n1", "--ampcheck-min-speedup=1", "-W", "ignore")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["batch *: the speed of bf16 cannot be judged: the part 'time' was not measured"]
    )


def test_a_gate_on_training_trains_and_without_training_it_fails(folder):
    folder.makepyfile(
        test_steps="""
        from ampcheck.bench.request import Request

        def test_quick(precision_benchmark):
            precision_benchmark("net.py", "bf16", settings=Request(parts=("memory",)))

        def test_trains(precision_benchmark):
            found = precision_benchmark("net.py", "bf16")
            assert found.row.courses
        """
    )
    result = folder.runpytest_subprocess("--ampcheck-max-loss=100", "--benchmark-disable")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["batch *: the training of bf16 cannot be judged: the part 'training' was not measured"]
    )


def test_every_call_of_one_test_is_in_the_json_under_a_name_of_its_own(folder):
    folder.makepyfile(
        test_steps="""
        import json
        from ampcheck.bench.request import Request

        def test_both(precision_benchmark):
            for precision, size in (("bf16", 16), ("bf16", 8), ("amp", 8)):
                sized = Request(parts=("time", "memory"), budget=0.1, batch_sizes=(size,))
                found = precision_benchmark("net.py", precision, settings=sized)
                assert found.row.precision == precision
                print("SAMPLES", json.dumps([row.time.samples for row in found.case.rows]))
        """
    )
    result = folder.runpytest_subprocess("-s", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    (fp32, bf16), second, third = samples(result)
    entries = json.loads((folder.path / "out.json").read_text())["benchmarks"]
    shown = [
        (entry["name"], entry["group"], entry["extra_info"]["ampcheck"]["precision"]) for entry in entries
    ]
    assert shown == [
        ("test_both", "batch 16", "bf16"), ("test_both (fp32)", "batch 16", "fp32"),
        ("test_both (fp32, call 2)", "batch 8", "fp32"), ("test_both (bf16, call 2)", "batch 8", "bf16"),
        ("test_both (fp32, call 3)", "batch 8", "fp32"), ("test_both (amp, call 3)", "batch 8", "amp"),
    ]  # fmt: skip
    for entry, given in zip(entries, [bf16, fp32, *second, *third], strict=True):
        assert entry["stats"]["data"] == pytest.approx(given, rel=1e-9)
        assert entry["stats"]["median"] == pytest.approx(statistics.median(given), rel=1e-9)
    more = entries[0]["extra_info"]["ampcheck_more"]
    assert [(record["case"], record["precision"]) for record in more] == [
        ("batch 8", "bf16"),
        ("batch 8", "amp"),
    ]


def test_only_benchmarks_selects_it(folder):
    folder.makepyfile(test_other="def test_other(): pass")
    result = folder.runpytest_subprocess("--benchmark-only")
    result.assert_outcomes(passed=2, skipped=1)


def test_without_pytest_benchmark_it_says_what_is_missing(folder):
    result = folder.runpytest_subprocess("-p", "no:benchmark")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*precision_benchmark needs pytest-benchmark*"])


def test_a_function_can_be_the_target(folder):
    folder.makepyfile(
        test_steps="""
        import torch
        from torch import nn
        from ampcheck.bench.request import Request

        def make():
            return nn.Linear(64, 64), torch.randn(32, 64), lambda model, batch: model(batch).square().mean()

        def test_step(precision_benchmark):
            found = precision_benchmark(make, "amp", settings=Request(parts=("memory", "accuracy")))
            assert found.memory < 1.2
            assert found.speedup is None
        """
    )
    result = folder.runpytest_subprocess("--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    text = folder.path / "out.json"
    assert not text.exists() or json.loads(text.read_text())["benchmarks"] == [], "no time was made up"


def test_the_plug_in_does_not_load_torch():
    code = "import sys, ampcheck.bench.pytest_plugin; assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
