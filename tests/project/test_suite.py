"""How the tests are run: which are left out, who shares them, and what stands for an interpreter in many of them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import conftest
import forked
import pytest

TESTS = Path(conftest.__file__).parent


def test_every_test_that_is_left_out_is_there():
    for name in conftest.SLOW:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8"), name


@pytest.mark.parametrize(
    ("named", "options", "shared"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"usepdb": True}, False),
        (False, {"collectonly": True}, False),
        (False, {"numprocesses": 0}, False),
    ],
)
def test_a_plain_run_is_shared_and_others_are_as_they_were_asked_for(monkeypatch, named, options, shared):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    given = {"usepdb": False, "collectonly": False, "numprocesses": None, "dist": "no"} | options
    source = pytest.Config.ArgsSource.ARGS if named else pytest.Config.ArgsSource.TESTPATHS
    config = SimpleNamespace(option=SimpleNamespace(**given), args_source=source)
    conftest.pytest_cmdline_main(config)
    assert vars(config.option) == given | ({"numprocesses": 2, "dist": "worksteal"} if shared else {})


def test_without_xdist_a_plain_run_is_one_process():
    option = SimpleNamespace(usepdb=False, collectonly=False)
    conftest.pytest_cmdline_main(
        SimpleNamespace(option=option, args_source=pytest.Config.ArgsSource.TESTPATHS)
    )
    assert vars(option) == {"usepdb": False, "collectonly": False}


SCRIPT = """
import atexit, os, signal, sys
print(sys.argv, sys.path[0], __name__, __file__, os.getcwd(), os.environ["WORD"], sys.stdin.read())
print("é", sys.modules["__main__"].__dict__ is globals(), file=sys.stderr)
atexit.register(print, "at the end")
how = sys.argv[1]
if how == "exits": sys.exit(3)
if how == "says": sys.exit("why")
if how == "raises": raise ValueError(how)
if how == "interrupted": raise KeyboardInterrupt
if how == "dies": os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["ends", "exits", "says", "raises", "interrupted", "dies"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii:replace"])
def test_a_fork_does_as_an_interpreter_does(tmp_path, how, encoding):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "WORD": "w", "PYTHONIOENCODING": encoding}
    command, ended = ["script.py", how, "-x", "2"], []
    for start in ([sys.executable], forked.python(), [forked.executable(), "-u"]):
        done = subprocess.run(
            [*start, *command],
            check=False,
            cwd=tmp_path,
            env=environment,
            input="typed",
            capture_output=True,
            encoding="utf-8",
        )
        printed = "" if how == "dies" else done.stdout  # what was not flushed is lost, and -u flushes at once
        ended.append((done.returncode, printed, done.stderr))
    assert ended[0] == ended[1] == ended[2]
