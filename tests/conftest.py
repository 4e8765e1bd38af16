"""What every test runs under: a fixed width, one thread, and snapshots that are read before they are kept."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]
#: A project of its own, which the tests of the pytest plug-in run as a user would.
collect_ignore = ["sample_project"]
SNAPSHOTS = Path(__file__).parent / "snapshots"

os.environ["COLUMNS"] = "100"
# What a CI service says of itself changes what pytest, rich and ampcheck print: tests that want it set it themselves.
SERVICE = ("CI", "BUILD_NUMBER", "TF_BUILD", "GITHUB_ACTIONS", "GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY")
COLOURS = ("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
for _name in SERVICE + COLOURS:
    os.environ.pop(_name, None)
# In the background of a shell, or under nohup, these are ignored: tests send them to processes that they start.
for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)
# The same examples in every run; `--hypothesis-profile explore` tries others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ampcheck", settings.get_profile("explore"), derandomize=True)
settings.load_profile("ampcheck")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let snapshots be rewritten; the diff is then to be read."""
    parser.addoption("--update-snapshots", action="store_true", help="rewrite tests/snapshots; read the diff")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Keep torch from taking every core, without loading it for tests that do not use it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_rule_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an error of a rule be one here, where a report would say that it has seen less."""
    verdict = sys.modules.get("ampcheck.diagnose.verdict")
    if verdict is not None:
        monkeypatch.setattr(verdict, "fails", lambda _, __, error: raises(error))


def raises(error: Exception) -> None:
    """Raise an error."""
    raise error


@pytest.fixture(autouse=True)
def _no_file_of_a_test_stays_imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the next test find its own net.py."""
    before, folder = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _no_mode_is_left_in_force() -> Iterator[None]:
    """Say at which test something stays behind that would see, and slow, what others run."""
    yield
    modes = sys.modules.get("torch.utils._python_dispatch")
    if modes is not None:
        assert not modes._get_current_dispatch_mode_stack()


@pytest.fixture(autouse=True, scope="module")
def _what_is_loaded_is_no_garbage() -> None:
    """Spare every later collection, and every search of live objects, the walk over torch and its libraries."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let everything be taken apart at the end, as without us."""
    gc.unfreeze()


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with tests/snapshots/<name>; rewrite it under --update-snapshots."""

    def compare(text: str, name: str) -> None:
        path = SNAPSHOTS / name
        if request.config.getoption("--update-snapshots"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no snapshot {name}: run pytest --update-snapshots and read the diff"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share a plain `pytest` between two processes, where pytest-xdist is there; -n, --pdb and names of tests win."""
    given, whole = config.option, config.args_source is pytest.Config.ArgsSource.TESTPATHS
    alone = given.usepdb or given.collectonly or "PYTEST_XDIST_WORKER" in os.environ
    if whole and not alone and getattr(given, "numprocesses", 0) is None:
        given.numprocesses, given.dist = 2, "worksteal"


#: Tests that a plain `pytest` leaves out, measured by tests/studies/suite_times.py.
SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long."""
    for item in items:
        if item.nodeid.partition("[")[0].removeprefix("tests/") in SLOW:
            item.add_marker(pytest.mark.slow)
