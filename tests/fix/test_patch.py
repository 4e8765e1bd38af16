"""Patches: what a person would write, and that it does what the plan does."""

import subprocess
from pathlib import Path

import pytest
import torch

from ampcheck.cli import main
from ampcheck.fix.applied import patched as apply_to_text
from ampcheck.fix.patch import LOOP, diff, snippet, written
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
        "+        if torch.is_tensor(x) and x.dtype in (torch.half, torch.bfloat16):",
        "+            x = x.float()",
    ]
    assert diff(file, {"Elsewhere": "other"}) == ""


def test_a_class_shared_with_a_healthy_module_is_not_changed(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    plan = Plan("fp16", ("norms.1",), (), ScalerPlan(1024.0))
    assert written(plan, file, {"norms.0": "Norm", "norms.1": "Norm"}) == (snippet(plan),)
    first, then = written(plan, file, {"norms.1": "Norm"})
    assert (first[:3], then) == ("---", snippet(plan))
    assert written(Plan("fp16"), file, {}) == ()


def test_the_snippet_does_what_the_plan_does():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    x = torch.randn(4, 8)
    plan = Plan("fp16", ("1",))
    setup = snippet(plan).partition(LOOP)[0]
    with cuda_casting(), autocast_stands_in():
        exec(setup, {"model": model})
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
        assert written(plan, file, {}) == (snippet(plan),)
    file.write_text(REFUSED.format("F.binary_cross_entropy(model(batch[0]), batch[1])"))
    assert written(plan, file, {})[0].startswith("---")
    file.write_bytes(b"# coding: latin-1\n# \xe9\n")
    assert written(plan, file, {}) == (snippet(plan),)


def test_what_names_the_users_own_loop_is_called_a_sketch():
    for plan in (Plan("fp16", ("1",), (), ScalerPlan(8.0)), Plan("bf16", ("1",))):
        setup, _, loop = snippet(plan).partition(LOOP)
        assert not any(name in setup for name in ("loss", "optimizer", "batch", "scaler"))
        assert "loss_fn(model, batch)" in loop


def test_a_scale_below_one_is_written_as_it_is():
    assert "init_scale=0.125)" in snippet(Plan("fp16", ("1",), (), ScalerPlan(0.125)))


FORWARDS = {
    "by keyword alone": "def forward(self, *, x):\n        return x * x",
    "by position alone": "def forward(self, x, /):\n        return x * x",
    "over several lines": "def forward(\n        self, x\n    ):\n        return x * x",
    "behind a decorator": "@torch.enable_grad()\n    def forward(self, x):\n        return x * x",
    "a function first": """def forward(self, x):
        @torch.no_grad()
        def one():
            return 1
        return x * x * one()""",
    "after what it is": 'def forward(self, x):\n        """Square it."""\n        return x * x',
    "with tabs": "def forward(self, x):\n    \t\treturn x * x",
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_of_any_form_that_is_changed_computes_in_fp32(name, tmp_path):
    text = f"import torch\nclass Square(torch.nn.Module):\n    {FORWARDS[name]}"
    file = tmp_path / "net.py"
    file.write_text(text)
    change, space = diff(file, {"Square": "0"}), {}
    (tmp_path / "p.diff").write_text(change)
    subprocess.run(["git", "apply", "--unsafe-paths", "p.diff"], cwd=tmp_path, check=True)
    assert apply_to_text(text, change) == file.read_text()
    x = torch.full((2,), 300.0).half()
    with cuda_casting(), autocast_stands_in():
        exec(compile(file.read_text(), "net.py", "exec"), space)
        with torch.autocast("cuda", dtype=torch.float16):
            out = space["Square"]()(x=x) if name == "by keyword alone" else space["Square"]()(x)
    assert out.tolist() == [90000.0, 90000.0]


@pytest.mark.parametrize(
    "forward",
    [
        "def forward(self, *xs):\n        return xs[0] * xs[0]",
        "def forward(self, x, **more):\n        return x * x",
        "def forward(self, x): return x * x",
        "def forward(\n        self, x\n    ): return x * x",
        "forward = lambda self, x: x * x",
    ],
)
def test_a_forward_that_a_line_cannot_change_is_left_to_the_lines_to_paste(forward, tmp_path):
    file = tmp_path / "net.py"
    file.write_text(f"import torch\nclass Square(torch.nn.Module):\n    {forward}\n")
    assert diff(file, {"Square": "0"}) == ""
    plan = Plan("fp16", ("0",))
    assert written(plan, file, {"0": "Square"}) == (snippet(plan),)


def test_integers_and_doubles_stay_as_they_are(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\nclass Same(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    space: dict = {}
    with autocast_stands_in():
        exec(apply_to_text(file.read_text(), diff(file, {"Same": "0"})), space)
    same = space["Same"]()
    for given in (torch.arange(3), torch.ones(2, dtype=torch.float64), None, [1]):
        assert same(given) is given
    assert same(torch.ones(2).half()).dtype is same(torch.ones(2).bfloat16()).dtype is torch.float32


@pytest.mark.parametrize(
    ("head", "at"),
    [
        ('"""A file."""\nfrom __future__ import annotations\n\nfrom torch import nn\n', 3),
        ("import torch as th\nfrom torch import nn\n", 0),
        ("import torch.nn.functional as F\nfrom torch import nn\n", 0),
        ("import torch.nn.functional\nfrom torch import nn\n", None),
        ("from torch import nn\nimport torch\n", 1),
        ("try:\n    from torch import nn\nexcept ImportError:\n    raise\n", 4),
    ],
)
def test_torch_is_imported_where_the_file_does_not_have_its_name(head, at, tmp_path):
    file = tmp_path / "net.py"
    file.write_text(head + "class Same(nn.Module):\n    def forward(self, x):\n        return x\n")
    text = apply_to_text(file.read_text(), diff(file, {"Same": "0"}))
    with autocast_stands_in():
        exec(text, {"__name__": "net"})
    found = [number for number, line in enumerate(text.splitlines()) if line == "import torch"]
    assert found == ([] if at is None else [at])


def test_what_is_no_text_in_utf_8_gets_the_lines_to_paste(tmp_path):
    file = tmp_path / "net.py"
    file.write_bytes("# -*- coding: latin-1 -*-\nclass Größe: pass\n".encode("latin-1"))
    assert diff(file, {"Größe": "0"}) == ""


def test_a_file_whose_lines_end_otherwise_gets_no_diff_that_would_not_apply(tmp_path):
    file = tmp_path / "net.py"
    file.write_bytes(SOURCE.replace("\n", "\r\n").encode())
    assert diff(file, {"Norm": "1"}) == ""
    assert diff(_as_it_is(file), {"Norm": "1"}).startswith("---")


def _as_it_is(file):
    file.write_text(SOURCE, encoding="utf-8")
    return file
