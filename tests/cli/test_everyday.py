"""What a person meets at work: `ampcheck doctor`, completion in a shell, and words that were misspelt."""

import shutil
import subprocess
from importlib.metadata import version

import pytest
import torch

from ampcheck.cli import COMMANDS, _parser, audit_script, doctor, main, output


def test_doctor_says_what_is_installed(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    found = {line[3:].split()[0]: line for line in text.splitlines()}
    assert version("torch") in found["torch"]
    assert version("transformers") in found["transformers"]
    assert "no_such" not in text
    assert ("stands in" in found["GPU"]) == (not torch.cuda.is_available())
    assert all(line.startswith("ok ") for line in text.splitlines())


def test_doctor_fails_where_something_is_too_old(capsys, monkeypatch):
    monkeypatch.setitem(doctor.FRAMEWORKS, "transformers", "999.0")
    assert main(["doctor"]) == 1
    assert "!!  transformers" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_is_read_by_its_shell(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert "precision" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_bash_completes_a_command_and_an_option(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    for words, expected in (("ampcheck basel", "baseline"), ("ampcheck check --precis", "--precision")):
        parts = words.split()
        line = f"COMP_WORDS=({words}); COMP_CWORD={len(parts) - 1}; _ampcheck; echo ${{COMPREPLY[*]}}"
        done = subprocess.run(["bash", "-c", script + line], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected]


SCRIPT = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr")
print(parser.parse_args().lr)
"""


def test_an_option_of_ours_behind_a_script_is_ours_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "own.py").write_text(SCRIPT.replace('"--lr"', '"-o", dest="lr"'))
    (tmp_path / "argv.py").write_text("import sys\nprint(sys.argv[1:])\n")
    words = main_run("train.py", "--lr", "0.5", "-o", "r.html")
    assert words == ["run", "-o", "r.html", "train.py", "--lr", "0.5"]
    assert "-o r.html is read as an option of ampcheck" in capsys.readouterr().err
    # What the script has itself, or may have, stays the script's.
    assert main_run("own.py", "-o", "r.html") == ["run", "own.py", "-o", "r.html"]
    assert main_run("argv.py", "-o", "r.html") == ["run", "argv.py", "-o", "r.html"]
    assert capsys.readouterr().err == ""


def main_run(*words):
    return audit_script.run_words(["run", *words], _parser().commands["run"])


def test_without_a_terminal_a_line_a_part_is_said_once_it_takes_long(monkeypatch, capsys):
    now = iter([0.0, 1.0, 4.0, 5.0, 9.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    say = output.progress()
    for text in ("loading", "re-running", "re-running, step 2", "trying bf16"):
        say(text)
    assert capsys.readouterr().err.splitlines() == ["re-running", "trying bf16"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("baselin model.py", "did you mean baseline"),
        ("docter", "did you mean doctor"),
        ("torchvison:resnet18", "did you mean torchvision"),
        ("timn:resnet18", "did you mean timm"),
        ("check model.py --precison bf16", "did you mean --precision"),
        ("run trian.py", "did you mean train.py"),
        ("explain loss-scal", "did you mean loss-scale"),
    ],
)
def test_what_was_misspelt_is_named(typed, meant, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("")
    (tmp_path / "train.py").write_text("")
    try:
        status = main(typed.split())
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert meant in capsys.readouterr().err
