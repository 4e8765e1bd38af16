"""Patches: what a person would write, and that it does what the plan does."""

import subprocess
from pathlib import Path

import torch

from ampcheck.fix.patch import diff, snippet, written
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.values.plan import Plan, ScalerPlan

SOURCE = '''\
import torch
from torch import nn


class Norm(nn.Module):
    """Divides by the root of the mean square."""

    def forward(self, x):
        """Run it."""
        return x / (x * x).mean(-1, keepdim=True).sqrt()


class Mix(nn.Module):
    def forward(self, x, mask):
        return (x * x).masked_fill(mask, 0.0)
'''


def patched(tmp_path: Path, classes: dict[str, str]) -> dict:
    """Return what the file defines after the diff has been applied by `patch`-like means."""
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    change = diff(file, classes)
    (tmp_path / "change.diff").write_text(change)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", "change.diff"], cwd=tmp_path, check=True, capture_output=True
    )
    space: dict = {}
    exec(compile(file.read_text(), "net.py", "exec"), space)
    return space


def test_the_patched_class_computes_in_fp32(tmp_path):
    x = 900 * torch.randn(4, 32)
    norm = patched(tmp_path, {"Norm": "norm"})["Norm"]()
    with cuda_casting(), autocast_stands_in(), torch.autocast("cpu", dtype=torch.float16):
        out = norm(x.half())
    wide = x.half().float()
    assert torch.equal(out, wide / (wide * wide).mean(-1, keepdim=True).sqrt())


def test_inputs_that_are_no_numbers_stay_as_they_are(tmp_path):
    mix = patched(tmp_path, {"Mix": "mix"})["Mix"]()
    x, mask = torch.full((3,), 300.0).half(), torch.tensor([True, False, False])
    assert mix(x, mask).tolist() == [0.0, 90000.0, 90000.0]


def test_only_the_named_classes_change(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    change = diff(file, {"Norm": "norm"})
    assert [line for line in change.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        '+    @torch.autocast("cuda", enabled=False)',
        "+        x = x.float()",
    ]
    assert diff(file, {"Elsewhere": "other"}) == ""


def test_a_class_shared_with_a_healthy_module_is_not_changed(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    plan = Plan("fp16", ("norms.1",), (), ScalerPlan(1024.0))
    assert written(plan, file, {"norms.0": "Norm", "norms.1": "Norm"}) == snippet(plan)
    assert written(plan, file, {"norms.1": "Norm"}).startswith("---")
    assert written(Plan("fp16"), file, {}) == ""


def test_the_snippet_does_what_the_plan_does():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    x = torch.randn(4, 8)
    plan = Plan("fp16", ("1",))
    setup = snippet(plan).split('with torch.autocast("cuda", dtype')[0]
    with cuda_casting(), autocast_stands_in():
        exec(setup, {"torch": torch, "model": model})
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
            hidden = model[0](x)
    assert out.dtype is torch.float32
    assert torch.equal(out, torch.nn.functional.linear(hidden.float(), model[1].weight, model[1].bias))
