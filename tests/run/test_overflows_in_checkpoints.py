"""What overflows inside a checkpointed block is found at its line, in either of the two ways to checkpoint."""

import re
import subprocess

import forked
import pytest

from ampcheck.saved.report_json import read
from ampcheck.values.findings import Severity
from ampcheck.values.verdict import Health

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x):
        h = self.linear(x)
        return (h * 4000).square().sqrt() / 4000  # overflows

torch.manual_seed(0)
block, head = nn.Sequential(Block()), nn.Linear(16, 4)
optimizer = torch.optim.AdamW([*block.parameters(), *head.parameters()], 1e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(5):
    x, y = torch.randn(8, 8, requires_grad=True), torch.randint(0, 4, (8,))
    before = head.weight.detach().clone()
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = head(checkpoint(block, x, use_reentrant=sys.argv[1] == "reentrant"))
        loss = nn.functional.cross_entropy(out.float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("step", step, "skipped" if before.equal(head.weight) else "taken", scaler.get_scale())
"""


@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
def test_what_overflows_in_a_checkpointed_block_is_unsafe_at_its_line(tmp_path, how):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [*forked.python(), "-m", "ampcheck", "run", "-o", "r.json", "-o", "r.md", "train.py", how],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    steps = re.findall("step ([0-9]) skipped ([0-9.]+)", done.stdout)
    assert len(steps) == 5
    report = read(tmp_path / "r.json")
    assert report.verdict.word is Health.UNSAFE
    assert re.findall(r"\b(?:UN)?SAFE\b", (tmp_path / "r.md").read_text())[:1] == ["UNSAFE"]
    finding = next(one for one in report.findings if one.code == "AMP101")
    assert finding.severity is Severity.ERROR
    line = 1 + next(at for at, text in enumerate(SCRIPT.splitlines()) if "# overflows" in text)
    assert (finding.origin.module.rpartition(".")[0], finding.origin.line) == ("block", line)
    assert report.loop.steps == report.verdict.coverage.skipped == 5
    told = [(event.step, event.after) for event in report.loop.scales if event.skipped]
    assert told == [(int(step), float(scale)) for step, scale in steps]
