"""A captured step: audited from its file alone, its gradients are those of the real loss."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import ampcheck
from ampcheck.cli import main
from ampcheck.errors import TargetError
from ampcheck.targets import Options, load
from ampcheck.targets.captured import batch_and_loss, read

FILE = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 3)

    def forward(self, x, *, extra=None, flag=True):
        out = self.last(self.norm(self.first(x)).relu())
        return {"logits": out if extra is None else out + extra, "flag": flag}
"""
LOOP = """import torch
from torch import nn
from net import Net

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x)["logits"], y).backward()
    optimizer.step()
"""


@pytest.fixture
def step(tmp_path, monkeypatch):
    """A capture of one step, and the gradients that the real loss gave."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    target = load("net.py:Net")
    model = target.model
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 8, generator=generator), torch.randint(0, 3, (6,), generator=generator)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with ampcheck.capture(model, tmp_path / "step.safetensors", scaler):
        out = model(x, extra=torch.ones(3))
        scaler.scale(torch.nn.functional.cross_entropy(out["logits"], y)).backward()
    return {name: parameter.grad / 1024 for name, parameter in model.named_parameters()}


def test_the_gradients_are_those_of_the_real_loss(step):
    target = load("net.py:Net", Options(captured=Path("step.safetensors")))
    target.loss(target.model, target.batch(0)).backward()
    for name, parameter in target.model.named_parameters():
        torch.testing.assert_close(parameter.grad, step[name], rtol=1e-5, atol=1e-8)


def test_it_is_audited_from_the_file_alone(step, capsys):
    assert main(["--from", "step.safetensors", "-v"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("ampcheck net.py:Net · Net · fp16")
    assert "batch, weights and gradients are those of step.safetensors" in text


def test_nothing_in_the_file_is_code(step):
    with safe_open("step.safetensors", framework="pt") as file:
        about = file.metadata()
    assert about["target"] == "net.py:Net"
    assert json.loads(about["call"])[1]["dict"][0][0] == "extra"


class WithLoss(torch.nn.Module):
    """Gives a loss and what it is made of, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.last(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_loss_among_the_outputs_is_not_counted_twice_and_the_last_call_counts(tmp_path):
    model, path = WithLoss(), tmp_path / "a.safetensors"
    with ampcheck.capture(model, path):
        model(torch.randn(5, 4), torch.randint(0, 3, (5,)))  # gets no gradient back
        model(torch.randn(2, 4), torch.randint(0, 3, (2,)))["loss"].backward()
    about, tensors = read(path)
    batch, loss = batch_and_loss(about, tensors)
    again = WithLoss()
    again.load_state_dict(model.state_dict())
    loss(again, batch).backward()
    torch.testing.assert_close(again.last.weight.grad, model.last.weight.grad)


class Halves(torch.nn.Module):
    """Gives two parts of one operation's result, as recurrent layers of cuDNN give outputs and states."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(4, 6)

    def forward(self, x):
        return tuple(self.last(x).chunk(2, 1))


def test_an_output_that_is_not_used_has_no_gradient_and_is_left_out(tmp_path):
    model, path = Halves(), tmp_path / "a.safetensors"
    with ampcheck.capture(model, path):
        model(torch.randn(5, 4))[0].square().sum().backward()
    about, tensors = read(path)
    batch, loss = batch_and_loss(about, tensors)
    again = Halves()
    again.load_state_dict(model.state_dict())
    loss(again, batch).backward()
    torch.testing.assert_close(again.last.weight.grad, model.last.weight.grad)


def test_what_is_no_capture_is_refused(step, tmp_path, capsys):
    (tmp_path / "other.safetensors").write_bytes(b"no")
    with pytest.raises(SystemExit):
        main(["--from", "other.safetensors"])
    assert "expected a capture" in capsys.readouterr().err
    with (
        pytest.raises(TargetError, match="cannot be kept"),
        ampcheck.capture(torch.nn.Identity(), "a") as held,
    ):
        held._enter(None, (object(),), {})


def test_a_script_leaves_a_step_behind(step, tmp_path, capsys):
    (tmp_path / "loop.py").write_text(LOOP)
    assert main(["run", "--save-batch", "kept.safetensors", "loop.py"]) == 0
    assert "ampcheck --from kept.safetensors" in capsys.readouterr().err
    assert main(["net.py:Net", "--from", "kept.safetensors"]) == 0
