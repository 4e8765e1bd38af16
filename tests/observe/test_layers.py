"""Whole modules recorded: the same numbers as hooks of one's own see, and nothing else changes."""

import pytest
import torch
from awkward_runs import CASES, bits_of
from test_compiled import exact
from torch import nn
from transparency import options as options_of
from witness import installed, left_behind, model_bits, random_bits, seed

from ampcheck.observe.layers import LAYERS_ONLY, LayerRecorder
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import casting_rules
from ampcheck.run.audit import audit
from ampcheck.targets import load
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Phase


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Linear(12, 6)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.Identity(), Block(), nn.LayerNorm(6))


def recorded(net, run, **options):
    recorder = LayerRecorder(net, **options)
    with recorder:
        run()
    return recorder.trace(recorder.fetch())


@pytest.mark.parametrize("compiled", [True, False])
def test_results_and_gradients_are_those_of_hooks(compiled):
    net, x = model(), torch.randn(5, 6)
    seen = {}

    def hook(name):
        def left(_, __, out):
            seen["forward", name] = out.detach().clone()
            out.register_hook(lambda grad: seen.update({("backward", name): grad.clone()}))

        return left

    handles = [m.register_forward_hook(hook(name)) for name, m in net.named_modules()]
    net(x).square().sum().backward()
    for handle in handles:
        handle.remove()
    trace = recorded(net, lambda: net(x).square().sum().backward(), compiled=compiled)
    found = {(site.op, site.module): stats for site, stats in trace.sites.items() if site.op}
    # What a module hands on is its maker's: the root's output is the last layer's, Identity's the block's.
    made = {(op, name) for op, name in seen if name not in {"", "1"}}
    assert set(found) == made
    for key in made:
        values = seen[key].double()
        assert found[key].numel == values.numel()
        assert found[key].zeros == int((values == 0).sum())
        assert found[key].amax == values.abs().max().item()
        assert found[key].sum_squares == pytest.approx(values.square().sum().item(), rel=1e-6)
    assert trace.operations == 0
    assert trace.not_audited[LAYERS_ONLY] == len(made) / 2


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"threads", "data_parallel"}))
def test_both_ways_write_the_same_and_leave_nothing(name):
    net, batch, loss = CASES[name]()
    if name == "lazy":
        net(batch)
    before, things, found = Snapshot(net, batch), installed(), []
    # The first one alone may do more: a nested tensor computes its sizes once.
    for compiled in (True, True, False):
        before.restore()
        seed()
        with casting_rules(torch.device("cpu"), None):
            found.append(exact(recorded(net, lambda: loss(net, batch).backward(), compiled=compiled)))
    assert found[1][:2] == found[2][:2]
    assert found[1][2] == pytest.approx(found[2][2], rel=1e-6)
    assert left_behind(things, installed()) == []


@pytest.mark.parametrize("spec", ["torchvision:resnet18", "timm:convnext_atto", "transformers:t5"])
def test_the_step_is_bit_identical(spec):
    target = load(spec, options_of(spec))
    before, found = Snapshot(target.model, target.batch(0)), []
    for record in (False, True):
        before.restore()
        seed()
        recorder = LayerRecorder(target.model)
        if record:
            with recorder:
                target.loss(target.model, target.batch(0)).backward()
        else:
            target.loss(target.model, target.batch(0)).backward()
        found.append((model_bits(target.model), random_bits()))
    assert found[0] == found[1]


def test_what_modules_give_agrees_with_the_recorder_of_operations():
    net, x = model(), torch.randn(5, 6)
    layers = recorded(net, lambda: net(x).sum().backward())
    recorder = Recorder(net)
    with recorder:
        net(x).sum().backward()
    full = recorder.trace(recorder.fetch())
    borders = {s: v for s, v in full.sites.items() if not s.op and s.phase is Phase.FORWARD}
    mine = {s: v for s, v in layers.sites.items() if not s.op}
    assert {s: v.counts for s, v in mine.items()} == {s: v.counts for s, v in borders.items()}


@pytest.mark.parametrize("compiled", [True, False])
def test_a_result_that_nothing_uses_has_no_gradient(compiled):
    """One operation may have several results, as cuDNN's recurrent layers have: an unused one's gradient is None."""

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 8)

        def forward(self, x):
            return self.linear(x).chunk(2, 1)

    torch.manual_seed(0)
    net, x = Halves(), torch.randn(5, 6)

    def run():
        return net(x)[0].square().sum().backward()

    run()
    bare, net.linear.weight.grad = net.linear.weight.grad, None
    trace = recorded(net, run, compiled=compiled)
    assert torch.equal(net.linear.weight.grad, bare)
    backward = {site.op or site.slot for site in trace.sites if site.phase is Phase.BACKWARD}
    assert backward  # of the one that is used


def test_hooks_on_results_that_outlive_the_recording_are_gone():
    net, kept = model(), []
    recorder = LayerRecorder(net)
    with recorder:
        kept.append(net(torch.randn(5, 6)))
    kept[0].sum().backward()
    trace = recorder.trace(recorder.fetch())
    assert not [site for site in trace.sites if site.phase is Phase.BACKWARD]


def test_an_audit_of_layers_places_an_overflow_in_its_module_and_says_what_it_is():
    class Square(nn.Module):
        def forward(self, x):
            return (x * x).mean(-1, keepdim=True).expand_as(x) + x * x

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), Square(), nn.Linear(8, 2))
    batch = 600 * torch.randn(16, 8)
    target = Target("net", net, [batch], lambda m, x: m(x).square().mean().log())
    before = bits_of(net, batch)
    report = audit(target, Settings(layers_only=True, verify=False))
    assert bits_of(net, batch) == before
    found = [finding for finding in report.findings if finding.code == "AMP101"]
    assert [finding.sites[0].module for finding in found] == ["1"]
    assert any(note.startswith("layers only") for note in report.notes)
    assert report.low.operations == 0


def test_the_command_line_says_so(capsys):
    from ampcheck.cli import main

    assert main(["torchvision:resnet18", "--small", "--layers-only", "--no-verify"]) == 0
    assert "layers only" in capsys.readouterr().out


def test_nothing_is_measured_twice():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    trace = recorded(net, lambda: net(torch.randn(2, 4)).sum().backward())
    assert trace.measured == 1 + 2 * 30  # the input; each layer's result and its gradient
