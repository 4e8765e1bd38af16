"""The bench as a pytest-benchmark session: a test for each row, whose samples are those that were measured."""

import os
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ampcheck.bench.replay import ReplayClock, strict
from ampcheck.bench.result import Bench
from ampcheck.bench.table import records
from ampcheck.errors import AmpcheckError

#: The file with the one test that is run for every row.
_TESTS = Path(__file__).with_name("replayed_steps.py")


def refuse(parts: Sequence[str], *, histogram: bool = False) -> None:
    """Refuse what could not be handed to pytest-benchmark, before anything is measured."""
    if find_spec("pytest_benchmark") is None:
        raise AmpcheckError(
            "expected pytest-benchmark for the --benchmark options, it is not installed; "
            "pip install 'ampcheck[bench]'"
        )
    if histogram and find_spec("pygal") is None:
        words = "--benchmark-histogram needs pygal, which is not installed; pip install 'ampcheck[bench]'"
        raise AmpcheckError(words)
    if "time" not in parts:
        raise AmpcheckError(
            f"expected the part 'time' for the --benchmark options, got --parts {','.join(parts)}; "
            "pytest-benchmark takes times only"
        )


def enter(bench: Bench, options: Sequence[str]) -> None:
    """Enter every timed row into pytest-benchmark; `options` are its own, such as --benchmark-json=FILE.

    Nothing of the user's pytest configuration is read, and nothing is left behind but what the options ask for.
    """
    if not any(row.time for case in bench.cases for row in case.rows):
        words = "expected times for pytest-benchmark, no row was timed; the report says why for each row"
        raise AmpcheckError(words)
    expected = f"expected pytest-benchmark to take the samples for {' '.join(options)}"
    try:
        status = _session(bench, options)
    except Exception as error:
        raise AmpcheckError(f"{expected}, it raised {type(error).__name__}: {error}") from error
    if status:
        words = f"its session ended with status {status}; what pytest printed above says why"
        raise AmpcheckError(f"{expected}, {words}")


def _session(bench: Bench, options: Sequence[str]) -> int:
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        own = "-q --no-header --noconftest -p no:cacheprovider".split()
        own += ["-c", os.devnull, "--rootdir", folder]
        if not any(option.startswith("--benchmark-storage") for option in options):
            keeps = any(option.startswith(("--benchmark-save", "--benchmark-compare")) for option in options)
            own += [f"--benchmark-storage=file://{'.benchmarks' if keeps else folder}"]
        return int(pytest.main([str(_TESTS), *own, *options], plugins=[_Rows(bench)]))


class _Rows:
    """Gives the one test its rows, one after another."""

    def __init__(self, bench: Bench) -> None:
        found = {(record["case"], record["precision"]): strict(record) for record in records(bench)}
        self._rows = {
            f"{case.key} {row.precision}".replace(", ", " ").replace(" ", "-"): (
                case.key, row.time.samples, found[case.key, row.precision],
            )
            for case in bench.cases
            for row in case.rows
            if row.time is not None
        }  # fmt: skip

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if "timed_row" in metafunc.fixturenames:
            import pytest

            rows = []
            for name, (group, samples, record) in self._rows.items():
                clock = ReplayClock()
                mark = pytest.mark.benchmark(timer=clock, group=group)
                rows.append(pytest.param((samples, clock, record), id=name, marks=mark))
            metafunc.parametrize("timed_row", rows)

    def pytest_benchmark_update_json(self, config: Any, benchmarks: Any, output_json: dict[str, Any]) -> None:
        """Leave the samples' carriers out of the parameters: they are no values."""
        del config, benchmarks
        for entry in output_json["benchmarks"]:
            entry["params"] = {"row": entry["param"]} if entry.get("params") else entry.get("params")
