"""The README: its program is run, and what it shows is what comes out."""

import os
import re
import subprocess

import forked
import pytest
from readme import LOOPS, MANUAL, README, ROOT, block, shape


def test_the_example_prints_what_the_readme_shows(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(block("A model of your own"))
    monkeypatch.setenv("COLUMNS", "100")
    command = [*forked.python(), "-m", "ampcheck", "net.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    shown = block("<!-- output: ampcheck net.py -->").rpartition("...")[0]
    printed = shape(done.stdout)
    expected = shape(shown)
    assert printed[: len(expected)] == expected
    assert (
        re.findall(r"net\.py:\d+", shown) == re.findall(r"net\.py:\d+", done.stdout)[: shown.count("net.py:")]
    )


def test_a_known_model_prints_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    command = [*forked.python(), "-m", "ampcheck", "torchvision:resnet18"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [shape(line) for line in done.stdout.splitlines()]
    for line in block("<!-- output: ampcheck torchvision:resnet18 -->").splitlines()[1:]:
        assert shape(line) in printed, line


def test_the_loop_prints_what_the_readme_shows(tmp_path, monkeypatch):
    (tmp_path / "loop.py").write_text(block("A loop of your own", LOOPS))
    monkeypatch.setenv("COLUMNS", "100")
    command = [*forked.python(), "loop.py"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = shape(block("<!-- output: python loop.py -->", LOOPS).rpartition("...")[0])
    assert shape(done.stdout)[: len(expected)] == expected


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(MANUAL.glob("*.md"))], ids=lambda page: page.stem
)
def test_every_link_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (page.parent / name).exists(), name
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 250


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
