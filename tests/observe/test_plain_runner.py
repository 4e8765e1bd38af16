"""The runner that gives programs their known answers (tests/zoo/plain.py) and ampcheck cast alike, bit for bit."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parents[1] / "zoo" / "plain.py"
SCRIPT = """
import hashlib
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
wide, low = torch.rand(8, 8, requires_grad=True), torch.rand(8, 8).half()
image = torch.rand(2, 3, 8, 8)
calls = {
    "mm": lambda: wide @ low,
    "linear": lambda: F.linear(wide, wide, low[0]),
    "einsum": lambda: torch.einsum("ij,jk", wide, wide),
    "conv": lambda: F.conv2d(image, torch.rand(4, 3, 3, 3)),
    "add": lambda: wide + low,
    "mul": lambda: low * low,
    "exp": lambda: low.exp(),
    "log": lambda: low.log(),
    "pow": lambda: low**2,
    "sum": lambda: low.sum(),
    "mean": lambda: low.mean(),
    "softmax": lambda: low.softmax(-1),
    "cumsum": lambda: low.cumsum(0),
    "norm": lambda: low.norm(dim=1),
    "layer": lambda: F.layer_norm(low, (8,)),
    "relu": lambda: low.relu(),
    "sigmoid": lambda: low.sigmoid(),
    "silu": lambda: F.silu(low),
    "cat": lambda: torch.cat([low, wide]),
    "stack": lambda: torch.stack([low, low]),
    "mse": lambda: F.mse_loss(low, low.flip(0)),
    "cdist": lambda: torch.cdist(low, low),
    "cross": lambda: F.cross_entropy(low, torch.arange(8)),
    "cosine": lambda: F.cosine_similarity(low, low.flip(0)),
    "pool": lambda: F.avg_pool2d(image.half(), 2),
    "resize": lambda: F.interpolate(image.half(), scale_factor=2, mode="bilinear"),
    "dropout": lambda: F.dropout(low, 0.0),
    "var": lambda: low.var(),
    "prelu": lambda: F.prelu(low, wide[0].detach()),
    "gather": lambda: low.gather(1, torch.zeros(8, 1, dtype=torch.long)),
    "logsumexp": lambda: low.logsumexp(1),
    "attention": lambda: F.scaled_dot_product_attention(wide[None], wide[None], wide[None]),
}
for dtype in (torch.float16, torch.bfloat16):
    for name, call in calls.items():
        with torch.autocast("cuda", dtype=dtype):
            made = call()
        print(name, made.dtype, torch.is_autocast_enabled("cuda"))
with torch.autocast("cuda", dtype=torch.float16):
    loss = ((wide @ wide).exp() @ wide).square().mean()
    with torch.autocast("cuda", enabled=False):
        apart = wide.square().mean()
    loss = loss + apart + (wide @ wide.t()).float().square().mean()  # of the same cast as before the inner region
    late = torch.rand(8, 8, requires_grad=True)
    with torch.no_grad():
        late @ late
    loss = loss + (late @ late).float().mean()
scaler = torch.amp.GradScaler("cuda")
scaler.scale(loss * 2.0**-20).backward()
for one in (wide, late):
    assert one.grad.isfinite().all() and one.grad.any()
    print(scaler.get_scale(), hashlib.sha256(one.grad.numpy().tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("plain") / "calls.py"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def printed(script, *command):
    done = subprocess.run(
        [sys.executable, *map(str, command), str(script)],
        check=False,
        capture_output=True,
        text=True,
        cwd=script.parent,
    )
    return done, [line for line in done.stdout.splitlines() if "torch." in line or line.startswith("65536")]


def test_plain_torch_and_ampcheck_cast_alike(script):
    plain, said = printed(script, RUNNER)
    assert plain.returncode == 0, plain.stderr
    assert len(said) == 66
    watched = printed(script, "-m", "ampcheck", "run", "--as-cuda")[1]
    assert watched == said


def test_without_half_precision_all_is_fp32(script):
    plain, said = printed(script, RUNNER, "--fp32")
    assert plain.returncode == 0, plain.stderr
    assert {line.split()[1] for line in said if "torch." in line} == {"torch.float32"}
