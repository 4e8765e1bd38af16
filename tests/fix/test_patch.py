"""Patches: what a person would write, and that it does what the plan does."""

import subprocess
from pathlib import Path

import pytest
import torch

from ampcheck.cli import main
from ampcheck.fix.patch import diff, snippet, written
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.saved.report_json import read
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


REFUSED = """\
import torch
import torch.nn.functional as F
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())


def batch():
    torch.manual_seed(1)
    return torch.randn(32, 16), torch.rand(32, 1).round()


def loss(model, batch):
    return {}
"""


@pytest.mark.parametrize(
    "call",
    [
        "F.binary_cross_entropy(model(batch[0]), batch[1])",
        "F.binary_cross_entropy(model(batch[0]) * 0.9, batch[1], reduction='sum') * len('é')",
        "F.binary_cross_entropy(model(batch[0]), batch[1]) + F.binary_cross_entropy(model(batch[0]), 1 - batch[1])",
    ],
)
def test_a_patch_takes_a_refused_loss_out_of_autocast_and_leaves_the_model_in_it(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(REFUSED.format(call), encoding="utf-8")
    before: dict = {}
    exec(compile(Path("net.py").read_text(encoding="utf-8"), "net.py", "exec"), before)
    assert main(["net.py", "--save-patch", "change.diff", "-o", "r.json"]) == 1
    plan = read("r.json").plan
    assert (plan.fp32_modules, plan.fp32_lines) == ((), ("net.py:17",))
    subprocess.run(["git", "apply", "--unsafe-paths", "change.diff"], check=True, capture_output=True)
    after: dict = {}
    exec(compile(Path("net.py").read_text(encoding="utf-8"), "net.py", "exec"), after)
    with autocast_stands_in():
        assert torch.equal(*(names["loss"](names["model"](), names["batch"]()) for names in (before, after)))
    assert main(["net.py", "-o", "after.json"]) == 0
    report = read("after.json")
    assert {s.dtype for s in report.low.sites if s.op == "addmm" and s.slot == "output"} == {"float16"}
    assert not report.outcomes["settled"].harmed


def test_a_place_that_is_no_refused_loss_stays_a_sketch(tmp_path):
    file = tmp_path / "net.py"
    plan = Plan("fp16", (), (f"{file}:17",))
    for call in ("F.binary_cross_entropy(*batch)", "F.mse_loss(model(batch[0]), batch[1])"):
        file.write_text(REFUSED.format(call))
        assert written(plan, file, {}) == snippet(plan)
    file.write_text(REFUSED.format("F.binary_cross_entropy(model(batch[0]), batch[1])"))
    assert written(plan, file, {}).startswith("---")
    file.write_bytes(b"# coding: latin-1\n# \xe9\n")
    assert written(plan, file, {}) == snippet(plan)
