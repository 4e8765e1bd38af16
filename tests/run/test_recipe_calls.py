"""Scripts and FP8: what they train in it already, and what a recipe would do to them.

The witness is torchao: the gradients of the script's own backward, bit for bit.
"""

import dataclasses
import json
import subprocess
from importlib import import_module

import forked
import pytest
import torch
from torch import nn

from ampcheck.fix.recipe_lab import EVERYTHING, forward_and_backward
from ampcheck.observe.fp8.emulate import Emulation
from ampcheck.observe.step import Step
from ampcheck.run.audit import audit
from ampcheck.run.recipe_calls import TrainingCalls
from ampcheck.run.session import Session
from ampcheck.values.recipes import recipe
from ampcheck.values.settings import Schedule

NAMES = {"ao-tensorwise": "tensorwise", "ao-rowwise": "rowwise", "ao-rowwise-gw-hp": "rowwise_with_gw_hp"}


def net(dtype=torch.bfloat16):
    torch.manual_seed(0)
    layers = nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)
    return nn.Sequential(*layers).to(dtype)


def converted(name):
    float8, model = import_module("torchao.float8"), net()
    chosen = float8.Float8LinearConfig.from_recipe_name(NAMES[name])
    config = dataclasses.replace(chosen, emulate=True)
    return float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, path: path != "4"
    )


def trained(model, steps=3, outlier=False, **watched):
    """Train, watched; return the calls that were kept, the report and the last gradients."""
    torch.manual_seed(1)
    dtype = model[0].weight.dtype
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    calls, session = TrainingCalls(**watched), Session(Schedule(first=9, every=0))
    calls.follow(session)
    with session.watching():
        for _ in range(steps):
            x, y = torch.randn(64, 32).to(dtype), torch.randint(0, 16, (64,))
            if outlier:
                x[0] *= 1e6
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).float(), y).backward()
            grads = {name: p.grad.clone() for name, p in model.named_parameters()}
            optimizer.step()
    return calls, session.report("train.py"), grads


@pytest.mark.parametrize("name", NAMES)
def test_what_a_script_does_in_fp8_is_what_is_tried(name):
    model = converted(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    calls, report, theirs = trained(model, steps=1)
    [layers] = [f for f in report.findings if f.code == "AMP706"]
    assert "a report of its own follows" in layers.message
    model.load_state_dict(before)  # the weights of the step that was kept
    with calls.targets("train.py") as found:
        [(target, settings)] = found
        assert settings.precision == f"fp8:{name}"
        assert "4" in settings.keep
        kept = dataclasses.replace(EVERYTHING, modules=frozenset(settings.keep))
        step = Step(target.model, target.batch(0), target.loss)
        forward_and_backward(step, Emulation(recipe(name), kept))
        for key, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, theirs[key]), key
    assert all("forward" not in part.__dict__ for part in model.modules())


def test_harm_in_a_scripts_own_fp8_layers_is_found_and_placed():
    calls, _, _ = trained(converted("ao-tensorwise"), outlier=True)
    with calls.targets("train.py") as found:
        [(target, settings)] = found
        report = audit(target, settings)
    [harm] = [f for f in report.findings if f.severity == "error"]
    assert harm.code == "AMP701"
    assert not any(f.code == "AMP703" for f in report.findings)
    assert "4" in report.plan.bf16_modules  # which the script keeps in bf16 itself


def test_a_recipe_is_tried_on_a_script_in_fp32_and_nothing_of_it_moves():
    alone, watched = net(torch.float32), net(torch.float32)
    _, _, expected = trained(alone, recipe="fp8:ao-rowwise")
    calls, report, seen = trained(watched, recipe="fp8:ao-rowwise")
    assert not report.in_use
    for key, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[key])
        assert torch.equal(expected[key], seen[key])
    with calls.targets("train.py") as found:
        [(target, settings)] = found
        report = audit(target, settings)
    [result] = report.recipes.results
    assert (result.outcome.recipe, result.harmed) == ("ao-rowwise", False)
    assert len(target.batches) == 3
    assert all(torch.equal(v, watched.state_dict()[k]) for k, v in alone.state_dict().items())


def test_modules_without_parameters_do_not_take_a_models_place():
    calls = TrainingCalls("fp8")
    for _ in range(9):
        calls.note(nn.Identity(), (torch.ones(2),), {})
    calls.note(net(), (torch.randn(4, 32).bfloat16(),), {})
    assert [trained.kind for trained in calls.models.values()] == ["Sequential"]


def test_the_gradient_that_flows_back_is_the_scripts():
    model = net(torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    calls, _, theirs = trained(model, steps=1, recipe="fp8")
    model.load_state_dict(before)  # the weights of the step that was kept
    with calls.targets("train.py") as found:
        [(target, _)] = found
        model.zero_grad()
        target.loss(model, target.batch(0)).backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[key])


class Halves(nn.Module):
    """Gives two parts of one operation's result, of which one may be used by nothing."""

    def __init__(self):
        super().__init__()
        self.inner = net(torch.float32)

    def forward(self, x):
        return tuple(self.inner(x).chunk(2, 1))


def test_an_output_that_is_not_used_has_no_gradient():
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    calls, session = TrainingCalls("fp8"), Session(Schedule(first=9, every=0))
    calls.follow(session)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with session.watching():
        model(torch.randn(64, 32))[0].square().mean().backward()
        theirs = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    model.load_state_dict(before)
    with calls.targets("train.py") as found:
        [(target, _)] = found
        model.zero_grad()
        target.loss(model, target.batch(0)).backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[key])


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(64, 32)), torch.randint(0, 16, (64,)))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("done")
"""


@pytest.mark.parametrize("command", [["run"], []], ids=["run", "check"])
def test_what_if_asks_for_a_recipe_on_the_command_line(tmp_path, command):
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(SCRIPT)
    words = [*command, "--what-if", "fp8:te-current", "-o", str(out)]
    words = [*words, str(script)] if command else [str(script), *words]
    done = subprocess.run(
        [*forked.python(), "-m", "ampcheck", *words], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    loop, tried = (json.loads(path.read_text()) for path in (out, tmp_path / "out-2.json"))
    assert loop["precision"] == "bf16"
    assert loop["loop"]["steps"] == 2
    assert tried["recipes"]["asked"] == "fp8:te-current"
    assert tried["plan"]["recipe"] == "te-current"
