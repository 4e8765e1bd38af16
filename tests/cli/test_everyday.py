"""What a person meets at work: `ampcheck doctor`, completion in a shell, and words that were misspelt."""

import shutil
import subprocess
from importlib.metadata import version

import pytest
import torch

from ampcheck.cli import COMMANDS, doctor, main


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
