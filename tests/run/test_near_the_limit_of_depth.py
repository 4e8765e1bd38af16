"""Scripts that come near Python's limit of depth, and that exceed it, end under `ampcheck run` as they do alone."""

import re
import subprocess

import forked

from ampcheck.saved.report_json import read

DEEP = """
import hashlib, sys
import torch
from torch import nn

class Deep(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), inner

    def forward(self, x):
        x = self.linear(x)
        return x if self.inner is None else self.inner(x)

def nested(depth):
    torch.manual_seed(0)
    model = None
    for _ in range(depth):
        model = Deep(model)
    return model

def train(depth, steps):
    model, losses = nested(depth), []
    optimizer = torch.optim.SGD([one.linear.weight for one in parts(model)], 0.1)
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 4)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return repr((losses, [one.linear.weight.sum().item() for one in parts(model)], torch.rand(1).item()))

def parts(model):
    while model is not None:
        yield model
        model = model.inner

def runs(depth):
    try:
        return bool(train(depth, 1))
    except RecursionError:
        return False

if len(sys.argv) == 1:
    low, high = 10, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    print("DEPTH", low)
else:
    depth = int(sys.argv[1])
    print(depth, hashlib.sha256(train(depth, 3).encode()).hexdigest())
"""
ENDLESS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(2, 4)).float().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())

def deeper(n):
    return deeper(n + 1)

deeper(0)
"""


def ended(folder, *words):
    """Run a command; return its exit status, what it printed, and what it said beside that."""
    done = subprocess.run(
        [*forked.python(), *words], check=False, cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_modules_nested_as_deep_as_python_lets_them_be_train_the_same(tmp_path):
    (tmp_path / "train.py").write_text(DEEP)
    depth = re.fullmatch("DEPTH ([0-9]+)\n", ended(tmp_path, "train.py")[1])[1]
    assert int(depth) > 200
    alone = ended(tmp_path, "train.py", depth)[:2]
    assert alone[0] == 0
    assert ended(tmp_path, "-m", "ampcheck", "run", "-o", "r.json", "train.py", depth)[:2] == alone
    loop = read(tmp_path / "r.json").loop
    assert loop.steps == 3
    assert loop.recorded


def test_a_script_that_calls_itself_without_end_ends_as_alone_and_has_its_report(tmp_path):
    (tmp_path / "train.py").write_text(ENDLESS)
    status, printed, said = ended(tmp_path, "train.py")
    assert status == 1
    beside = ended(tmp_path, "-m", "ampcheck", "run", "-o", "r.json", "train.py")
    assert beside[:2] == (status, printed)
    assert said.splitlines()[-1].startswith("RecursionError")
    # How often a line was repeated is not the same: a few calls of ours lie below.
    lines = [re.sub("[0-9]+ more times", "many more times", text) for text in (said, beside[2])]
    assert lines[0] == lines[1]
    report = read(tmp_path / "r.json")
    assert report.loop.steps == 3
    assert report.loop.recorded
    assert "RecursionError" in report.verdict.coverage.raised
