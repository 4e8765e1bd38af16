"""Harm that no small set of places in FP32 heals: an error and a status of 1, whatever a search has found."""

import json
from pathlib import Path

import pytest
import torch

from ampcheck.cli import main

#: Each of many branches loses bits in a forward of its own, and all are added up.
BRANCH = """
class Branch{0}(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 8)
    def forward(self, x):
        return (self.f(x) + SHIFT) - SHIFT
"""
BRANCHES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(kind() for kind in (KINDS))
    def forward(self, x):
        return sum(branch(x).float() for branch in self.branches)
def model():
    torch.manual_seed(0)
    return Net()
def batch():
    torch.manual_seed(1)
    return torch.randn(32, 8)
def loss(model, batch):
    return model(batch).square().mean()
"""
#: A step on an unscaled, small loss comes before the one that is trained, its weights handed to the same modules.
ADAPTED = """
from contextlib import nullcontext
from torch.func import functional_call
def region(low):
    return nullcontext() if low else torch.autocast("cpu", enabled=False)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 1)
    def forward(self, x):
        return self.out(torch.tanh(self.two(torch.tanh(self.one(x)))))
def model():
    torch.manual_seed(0)
    made = Net()
    with torch.no_grad():
        made.out.weight.mul_(1e-3)
        made.out.bias.zero_()
    return made
def batch():
    torch.manual_seed(1)
    x, query = torch.randn(128, 6), torch.randn(64, 6)
    return x, 1e-3 * x.sum(1, keepdim=True), query, 1e-3 * query.sum(1, keepdim=True)
def off(model, weights, x, y):
    return (functional_call(model, weights, (x,)).float() - y).square().mean()
def loss(model, batch):
    x, y, query, wanted = batch
    weights = dict(model.named_parameters())
    with region(FORWARD):
        inner = off(model, weights, x, y)
    with region(BACKWARD):
        grads = dict(zip(weights, torch.autograd.grad(inner, list(weights.values()))))
    fast = {
        name: weight - 2.0 * grads[name] / (grads[name].norm() + 1e-20) if name in ADAPTED else weight
        for name, weight in weights.items()
    }
    return 1e2 * off(model, fast, query, wanted)
ADAPTED = ("one.weight", "two.weight")
"""


def branches(shift):
    kinds = ", ".join(f"Branch{at}" for at in range(8)) + ","
    made = "".join(BRANCH.format(at) for at in range(8)) + BRANCHES.replace("KINDS", kinds)
    return f"import torch\nfrom torch import nn\nSHIFT = {shift}\n{made}"


def adapted(forward, backward):
    return f"import torch\nfrom torch import nn\nFORWARD, BACKWARD = {forward}, {backward}\n{ADAPTED}"


def error_by_torch(text):
    """Return how far the gradients lie from FP32's under the fp16 autocast that torch has for a CPU."""
    names: dict = {}
    exec(compile(text, "net.py", "exec"), names)
    found = []
    for low in (False, True):
        model = names["model"]()
        with torch.autocast("cpu", torch.float16, enabled=low):
            loss = names["loss"](model, names["batch"]())
        (loss * 2.0**8).backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    wide, narrow = found
    return float((narrow - wide).norm() / wide.norm())


def audited(tmp_path, monkeypatch, text):
    """Return the status of an audit with all its trials, and the report that it saves."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(text)
    status = main(["net.py", "-o", "r.json"])
    return status, json.loads(Path("r.json").read_text())


# The backward of what FP32 has computed rounds too where autocast is on around it.
@pytest.mark.parametrize(
    "text",
    [branches(2000.0), adapted(True, True), adapted(False, True)],
    ids=["every branch", "inner step", "inner backward"],
)
def test_what_no_small_set_heals_is_an_error_and_a_status_of_1(tmp_path, monkeypatch, capsys, text):
    assert error_by_torch(text) > 0.15
    status, report = audited(tmp_path, monkeypatch, text)
    assert "ampcheck: UNSAFE, AMP501" in capsys.readouterr().err
    assert (status, report["verdict"]["word"]) == (1, "unsafe")
    (error,) = [found for found in report["findings"] if found["severity"] == "error"]
    assert error["code"] == "AMP501"
    assert "no small set of places heals it" in error["message"]
    assert report["outcomes"]["settled"]["grad_error"] > 0.15
    assert report["plan"]["precision"] != "fp16"
    assert not report["plan"]["fp32_modules"]


@pytest.mark.parametrize("text", [branches(1.0), adapted(False, False)], ids=["every branch", "inner step"])
def test_the_same_without_what_rounds_is_no_error(tmp_path, monkeypatch, text):
    assert error_by_torch(text) < 0.01
    status, report = audited(tmp_path, monkeypatch, text)
    assert (status, report["verdict"]["word"]) == (0, "safe")
    assert not [found for found in report["findings"] if found["severity"] == "error"]
    assert report["outcomes"]["settled"]["grad_error"] < 0.01
