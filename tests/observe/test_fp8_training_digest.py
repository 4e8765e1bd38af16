"""torchao's float8 training on a CPU, alone and watched: the same losses and weights, bit for bit."""

from importlib import import_module

import pytest
import torch
from scripts_run import DIGEST, alone, watched
from torch import nn
from witness import bits

import ampcheck

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 5
OPTIMIZERS = {
    "SGD": lambda held: torch.optim.SGD(held, 1e-2),
    "AdamW": lambda held: torch.optim.AdamW(held, 1e-3),
}


def trained(optimizer, *, autocast):
    """Train three layers in emulated float8; return the bits of every loss, gradient and weight."""
    float8 = import_module("torchao.float8")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16))
    float8.convert_to_float8_training(model, config=float8.Float8LinearConfig(emulate=True))
    steps, seen = OPTIMIZERS[optimizer](model.parameters()), []
    for _ in range(STEPS):
        x, y = torch.randn(16, 64), torch.randint(0, 16, (16,))
        steps.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        seen += [bits(loss), *(bits(p.grad) for p in model.parameters())]
    return [*seen, *map(bits, model.parameters()), bits(torch.get_rng_state())]


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_torchaos_float8_trains_the_same_watched_and_alone(optimizer, autocast):
    bare = trained(optimizer, autocast=autocast)
    with ampcheck.watch(first=STEPS, reference="all") as watching:
        seen = trained(optimizer, autocast=autocast)
    assert seen == bare
    report = watching.report()
    assert (report.loop.steps, report.loop.recorded) == (STEPS, tuple(range(STEPS)))
    assert {layer.module.rpartition(".")[2] for layer in report.in_use} == {"0", "2", "4"}
    assert len(report.low.steps) == STEPS


TEXT = f"""
import sys, torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
for _ in range({STEPS}):
    x, y = torch.randn(16, 64), torch.randint(0, 16, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[1] == "autocast"):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
trained = [*model.parameters(), torch.get_rng_state()]
{DIGEST}"""


@pytest.mark.parametrize("how", ["autocast", "plain"])
def test_torchaos_float8_prints_the_same_under_run(tmp_path, how):
    script = tmp_path / "train.py"
    script.write_text(TEXT)
    ran = watched(script, how)
    assert ran.printed == alone(script, how).printed
    assert (ran.report.loop.steps, ran.report.loop.recorded[:1]) == (STEPS, (0,))
