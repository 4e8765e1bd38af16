"""The README: its program is run, and what it shows is what comes out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(after: str) -> str:
    """Return the first fenced block after a text."""
    found = re.search(r"```\w*\n(.*?)```", README[README.index(after) :], re.DOTALL)
    assert found
    return found[1]


def shape(text: str) -> list[str]:
    """Return words with every number made the same: the last digits, and times, differ between machines."""
    joined = " ".join(line.strip() for line in text.splitlines())
    joined = re.sub(r"· (a step takes|no difference measured) [^·(]*\(", "· TIMES (", joined)
    joined = joined.replace("(measured here, ", "(")
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", joined).split()


def test_the_example_prints_what_the_readme_shows(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(block("A model of your own"))
    monkeypatch.setenv("COLUMNS", "100")
    command = [sys.executable, "-m", "ampcheck", "net.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    shown = block("<!-- output: ampcheck net.py -->").rpartition("...")[0]
    printed = shape(done.stdout)
    expected = shape(shown)
    assert printed[: len(expected)] == expected
    assert (
        re.findall(r"net\.py:\d+", shown) == re.findall(r"net\.py:\d+", done.stdout)[: shown.count("net.py:")]
    )


def test_the_loop_prints_what_the_readme_shows(tmp_path, monkeypatch):
    (tmp_path / "loop.py").write_text(block("A loop of your own"))
    monkeypatch.setenv("COLUMNS", "100")
    command = [sys.executable, "loop.py"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = shape(block("<!-- output: python loop.py -->").rpartition("...")[0])
    assert shape(done.stdout)[: len(expected)] == expected


def test_every_path_the_readme_names_exists():
    for name in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    "claim", ["pip install -e '.[models]'", "pip install -e '.[dev]'", "python -m pytest"]
)
def test_the_two_commands_are_there(claim):
    assert claim in README.split("A model of your own")[0]


def test_ci_runs_the_readmes_test_command():
    command = re.search(r"\.venv/bin/python (-m pytest.*)", README)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert command is not None
    assert f'"$venv/bin/python" {command[1]}' in ci
