"""The fixture `precision_benchmark`, its gates and its summary; torch is loaded by the first test that uses it.

@pytest.mark.parametrize("precision", ["amp", "bf16"])
def test_step(precision_benchmark, precision):
    found = precision_benchmark("model.py", precision)
    assert found.memory < 0.8
"""

import json
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from ampcheck.bench.gates import Gates, broken
from ampcheck.bench.replay import ReplayClock, strict
from ampcheck.bench.result import BASE

_CLOCK = pytest.StashKey[ReplayClock]()
#: Of each test its calls, and of each call the rows that were timed: case, samples, record.
_BESIDE = pytest.StashKey[dict[str, list[list[tuple[str, Sequence[float], dict[str, Any]]]]]]()
_FIXTURE = "precision_benchmark"
_PROPERTY = "ampcheck_bench"
_OPTIONS = {
    "min_speedup": (
        "--ampcheck-min-speedup",
        "the lower end of the interval of the speed-up has to reach it",
    ),
    "max_memory": ("--ampcheck-max-memory", "of the peak on CUDA over that of FP32"),
    "max_loss": ("--ampcheck-max-loss", "share by which training may end worse than in FP32"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the gates, as options and as ini keys."""
    group = parser.getgroup("ampcheck")
    for name, (option, about) in _OPTIONS.items():
        words = f"fail a test that uses {_FIXTURE}: {about}"
        group.addoption(option, type=float, default=None, metavar="X", dest=f"ampcheck_{name}", help=words)
        parser.addini(f"ampcheck_{name}", words, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Without pytest-benchmark, say so where the fixture is asked for."""
    if not any(
        config.pluginmanager.hasplugin(name) for name in ("benchmark", "codspeed", "pytest_benchmark")
    ):
        config.pluginmanager.register(_Missing(), "ampcheck-no-benchmark")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test that uses the fixture a clock to replay samples with, beside what its own marker says."""
    if _FIXTURE not in getattr(item, "fixturenames", ()):
        return
    clock = item.stash[_CLOCK] = ReplayClock()
    marker = item.get_closest_marker("benchmark")
    item.add_marker(
        pytest.mark.benchmark(**{**(marker.kwargs if marker else {}), "timer": clock}), append=False
    )


@pytest.fixture
def precision_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Any:
    """Measure a precision against FP32, interleaved: time, memory, accuracy, each as a ratio."""
    from ampcheck.bench.running.fixture import PrecisionBenchmark

    config = request.config
    limits = {name: _limit(config, name) for name in _OPTIONS}
    parallel = hasattr(config, "workerinput")
    timed = getattr(benchmark, "enabled", True) and not parallel

    entered: list[str] = []
    _refuse_histogram(config)

    def found(result: Any) -> None:
        all_records = [strict(record) for record in result.records]
        own = all_records[-1]
        request.node.user_properties += [(_PROPERTY, json.dumps(strict(record))) for record in result.asked]
        _beside(config, request.node.nodeid, result, all_records)
        first = not entered
        entered.append(own["precision"])
        samples = result.row.time.samples if result.row.time else ()
        # pytest-benchmark takes one result of a test; what further calls found stands in the extra_info
        if first:
            benchmark.extra_info["ampcheck"] = own
        else:
            benchmark.extra_info.setdefault("ampcheck_more", []).append(own)
        if first and timed and samples:
            request.node.stash[_CLOCK].enter(benchmark, samples)
        elif first:
            benchmark.disabled = True  # there is no time to enter, and a made-up one must not get in
            benchmark.pedantic(lambda: None, rounds=1, iterations=1)
        failed = broken(Gates(**limits), result.bench)
        if failed and own["precision"] != BASE:  # a test of FP32 alone is what the others are held to
            pytest.fail("\n".join(failed), pytrace=False)

    return PrecisionBenchmark(found, timed=timed, trains=limits["max_loss"] is not None)


def _refuse_histogram(config: pytest.Config) -> None:
    """Say before anything is measured that the histogram cannot be drawn."""
    if getattr(config.option, "benchmark_histogram", None) and find_spec("pygal") is None:
        raise pytest.UsageError(
            "--benchmark-histogram needs pygal, which is not installed: pip install 'ampcheck[bench]'"
        )


def _beside(config: pytest.Config, test: str, result: Any, records: list[dict[str, Any]]) -> None:
    """Keep the rows that one call has timed: the one that is entered, FP32, and further precisions."""
    timed = [
        (result.case.key, row.time.samples, record)
        for row, record in zip(result.case.rows, records, strict=True)
        if row.time is not None
    ]
    config.stash.setdefault(_BESIDE, {}).setdefault(test, []).append(timed)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    """Add the rows beside each entered one, so that `pytest-benchmark compare` shows FP32 next to AMP."""
    del benchmarks
    kept = config.stash.get(_BESIDE, {})
    for entry in list(output_json["benchmarks"]):
        own = (entry.get("extra_info") or {}).get("ampcheck", {})
        calls = kept.get(entry["fullname"], ()) if own else ()
        group = entry["group"]
        for call, (case, samples, record) in ((at + 1, row) for at, rows in enumerate(calls) for row in rows):
            if call == 1 and record["precision"] == own["precision"]:
                entry["group"] = group or case
            else:
                added = _added(entry, samples, record, call)
                output_json["benchmarks"].append(added | {"group": group or case})


def _added(
    entry: dict[str, Any], samples: Sequence[float], record: dict[str, Any], call: int
) -> dict[str, Any]:
    """Return the entry of a row that was timed beside another one, with the statistics of its own samples."""
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for sample in samples:
        stats.update(sample)
    numbers = {**entry["stats"], **stats.as_dict()}
    if "data" in numbers:
        numbers["data"] = list(samples)
    name = f" ({record['precision']}{f', call {call}' * (call > 1)})"
    return entry | {
        "name": entry["name"] + name,
        "fullname": entry["fullname"] + name,
        "extra_info": {"ampcheck": record},
        "stats": numbers,
    }


def _limit(config: pytest.Config, name: str) -> float | None:
    given = config.getoption(f"ampcheck_{name}")
    text = str(config.getini(f"ampcheck_{name}")) if given is None else str(given)
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        where = f"the ini key ampcheck_{name}" if given is None else _OPTIONS[name][0]
        raise pytest.UsageError(f"expected zero or a number above it in {where}, got {text!r}")
    return limit


class _Missing:
    """Stands in for pytest-benchmark's fixture where the plug-in is not there."""

    @pytest.fixture
    def benchmark(self) -> Any:
        """Say what is missing."""
        raise pytest.UsageError(
            f"{_FIXTURE} needs pytest-benchmark, which is not active: pip install 'ampcheck[bench]', "
            "and leave out -p no:benchmark"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add what a time of torch means nothing without; only where torch was loaded anyway."""
    import sys

    del config
    torch = sys.modules.get("torch")
    if torch is None:
        return
    cuda = torch.cuda.is_available()
    machine_info["torch"] = {
        "version": str(torch.__version__),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "cuda": str(torch.version.cuda) if cuda else "",
        "threads": torch.get_num_threads(),
    }


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show a line for each test that used the fixture."""
    records = list(_records(terminalreporter))
    if not records:
        return
    terminalreporter.section("ampcheck bench")
    for name, record in records:
        parts = [f"{name}: {record['precision']}: {record['verdict']}"]
        if record["speedup"] is not None:
            low, high = record["speedup_low"], record["speedup_high"]
            parts.append(f"× as fast [{low:.2f}, {high:.2f}] at 95 %")
        terminalreporter.write_line(" · ".join(parts))


def _records(terminalreporter: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if getattr(report, "when", "") == "call":
                for key, text in report.user_properties:
                    if key == _PROPERTY:
                        yield report.nodeid, json.loads(text)
