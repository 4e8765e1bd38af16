"""The files for GitHub's actions and for pre-commit: read, and their commands run, as far as can be without them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ampcheck.cli import main

ROOT = Path(__file__).parents[2]
MODEL = """import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def batch():
    return {scale} * torch.randn(3, 4)


def loss(model, batch):
    return (model(batch) ** 2).float().mean()
"""


@pytest.mark.parametrize(("scale", "status"), [(1, 0), (1e5, 1)])
def test_the_action_annotates_sums_up_and_fails_as_the_command_does(scale, status, tmp_path):
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    install, audit = action["runs"]["steps"]
    (tmp_path / "model.py").write_text(MODEL.format(scale=scale))
    given = {"target": "model.py", "arguments": "--no-verify --seed 1", "reports": "out"}
    named = {key: re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1] for key, value in audit["env"].items()}
    environment = {
        **os.environ,
        **{key: given[name] for key, name in named.items()},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", audit["run"]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(("::error", "::notice", "::warning"))
    assert "ampcheck" in (tmp_path / "summary").read_text()
    assert json.loads((tmp_path / "out" / "report.sarif").read_text())["version"] == "2.1.0"
    assert {path.suffix for path in (tmp_path / "out").iterdir()} >= {".html", ".md", ".sarif", ".json"}
    assert action["outputs"]["sarif"]["value"].endswith("report.sarif")
    assert "$PACKAGE" in install["run"]


def test_the_hook_of_pre_commit_runs_a_command_that_there_is(tmp_path, monkeypatch):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'{hook["entry"]} = "ampcheck.cli:main"' in project
    assert {"id", "name", "entry", "language", "types", "pass_filenames"} <= hook.keys()
    assert hook["pass_filenames"] is False  # one audit, whatever files have changed
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL.format(scale=1))
    assert main(["model.py", "--no-verify"]) == 0
