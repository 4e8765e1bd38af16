"""A plan's change in a file: `git apply` is the witness of the text, git of what can be undone."""

import subprocess

import pytest
import torch

from ampcheck.cli import main
from ampcheck.errors import TargetError
from ampcheck.fix.applied import patched
from ampcheck.fix.patch import diff

MODEL = """import torch
from torch import nn


class RMSNorm(nn.Module):
    def forward(self, x):
        return x / (x * x).mean(-1, keepdim=True).sqrt()


def model():
    return nn.Sequential(nn.Linear(16, 64), RMSNorm(), nn.Linear(64, 4))


def batch():
    return 900 * torch.randn(32, 16), torch.randint(0, 4, (32,))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
        cwd=folder,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository with a model in it that overflows."""
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")
    (tmp_path / "net.py").write_text(MODEL)
    git(tmp_path, "init", "-b", "trunk")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_the_text_is_what_git_apply_makes(folder):
    patch = diff(folder / "net.py", {"RMSNorm": "1"})
    (folder / "p.diff").write_text(patch)
    git(folder, "apply", "p.diff")
    assert patched(MODEL, patch) == (folder / "net.py").read_text() != MODEL


def test_a_file_that_has_changed_since_is_refused(folder):
    patch = diff(folder / "net.py", {"RMSNorm": "1"})
    with pytest.raises(TargetError, match="has changed since"):
        patched(MODEL.replace("(self, x)", "(self, y)"), patch)


def test_fix_changes_the_file_shows_both_and_git_undoes_it(folder, capsys):
    assert main(["fix", "net.py", "--train-steps", "6"]) == 0
    text = capsys.readouterr().out
    before, after = (line for line in text.splitlines() if line.startswith(("before", "after")))
    assert "UNSAFE" in before
    assert "  SAFE" in after
    rows = {line.split()[0]: line for line in text.splitlines() if " to " in line and line.startswith("  ")}
    ends = {name: float(row.split(" to ")[1].split(",")[0]) for name, row in rows.items()}
    assert ends["after"] == pytest.approx(ends["FP32"], rel=0.01)
    assert "skipped" in rows["before"] or ends["before"] != pytest.approx(ends["FP32"], rel=0.01)
    assert 'torch.autocast("cuda", enabled=False)' in (folder / "net.py").read_text()
    git(folder, "checkout", "net.py")
    assert (folder / "net.py").read_text() == MODEL


MASKED = """import torch
from torch import nn


class Masked(nn.Module):
    def forward(self, x):
        return x.masked_fill(x > 1, torch.finfo(torch.float32).min).softmax(-1)


def model():
    return nn.Sequential(nn.Linear(16, 64), Masked(), nn.Linear(64, 1), nn.Sigmoid())


def batch():
    return torch.randn(32, 16), torch.rand(32, 1)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])
"""


@pytest.mark.parametrize(
    "text",
    [
        MASKED,
        MASKED.replace("mse_loss", "binary_cross_entropy").replace("torch.finfo(torch.float32).min", "-1e4"),
    ],
    ids=["a mask", "a loss"],
)
def test_fix_changes_what_autocast_refuses_and_says_that_nothing_was_trained_before(folder, capsys, text):
    (folder / "net.py").write_text(text)
    git(folder, "commit", "-am", "refused")
    assert main(["fix", "net.py", "--train-steps", "4"]) == 0
    rows = dict(
        line.strip().partition(" ")[::2] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "
    )
    assert rows["before"].strip() == "autocast refuses the step"
    ends = {name: float(rows[name].split(" to ")[1].split(",")[0]) for name in ("FP32", "after")}
    assert ends["after"] == pytest.approx(ends["FP32"], rel=0.01)
    assert main(["net.py", "-o", "r.json"]) == 0
    git(folder, "checkout", "net.py")
    assert main(["net.py", "-o", "r.json"]) == 1


def test_fix_refuses_what_git_cannot_bring_back_and_writes_nothing_with_diff(folder, capsys):
    (folder / "net.py").write_text(MODEL + "\n")
    assert main(["fix", "net.py", "--no-verify"]) in {0, 1}  # without a plan there is nothing to write
    capsys.readouterr()
    assert main(["fix", "net.py"]) == 2
    error = capsys.readouterr().err
    assert "has changes that are not committed" in error
    assert "ampcheck fix net.py --force" in error
    assert main(["fix", "net.py", "--diff"]) == 0
    assert "+            x = x.float()" in capsys.readouterr().out
    assert (folder / "net.py").read_text() == MODEL + "\n"


def test_fix_commits_to_a_branch(folder):
    assert main(["fix", "net.py", "--branch", "in-fp32", "--train-steps", "2"]) == 0
    assert torch.is_grad_enabled()
    git(folder, "switch", "trunk")
    assert (folder / "net.py").read_text() == MODEL
    git(folder, "switch", "in-fp32")
    assert "enabled=False" in (folder / "net.py").read_text()
