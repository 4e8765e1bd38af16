"""Training without calling a module that holds what is trained: seen all the same, from its first step on."""

import linecache

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampcheck.observe.script import looking_again
from ampcheck.run.session import Session
from ampcheck.values.loop import Kind
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b.forward(self.a.forward(x).relu())

    def half_called(self, x):
        return self.b(self.a.forward(x).relu())


class Own(nn.Linear):
    def __call__(self, x):
        return self.forward(x)


def leaf():
    model = nn.Linear(8, 4)
    return model.parameters(), lambda x: model.forward(x)  # noqa: PLW0108  # found anew at each call


def container():
    model = Stack()
    return model.parameters(), lambda x: model.forward(x)  # noqa: PLW0108


def half_called():
    model = Stack()
    return model.parameters(), model.half_called


def bound():
    model = nn.Linear(8, 4)
    return model.parameters(), model.forward


def own_call():
    model = Own(8, 4)
    return model.parameters(), model


def patched():
    model = nn.Linear(8, 4)
    model.forward = lambda x: functional.linear(x, model.weight, model.bias)
    return model.parameters(), lambda x: model.forward(x)  # noqa: PLW0108


def bare():
    weight = (0.3 * torch.randn(8, 4)).requires_grad_()
    return [weight], lambda x: x @ weight


def functional_call():
    model = Stack()
    own = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    return own.values(), lambda x: torch.func.functional_call(model, own, (x,))


SHAPES = (leaf, container, half_called, bound, own_call, patched, bare, functional_call)


def train(shape, gain, device="cuda", steps=4, lr=0.01):
    """Train in fp16; a large gain makes an activation overflow."""
    torch.manual_seed(0)
    parameters, forward = shape()
    parameters = list(parameters)
    optimizer, scaler = torch.optim.SGD(parameters, lr), torch.amp.GradScaler(device, init_scale=2.0**8)
    for number in range(steps):
        torch.manual_seed(number)
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            out = forward(x)
            hidden = out * gain
        scaler.scale(functional.softmax(hidden.float(), 1).square().mean() + out.float().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach() for parameter in parameters]


def watched(run, *, as_cuda=True):
    session = Session(Schedule(), as_cuda=as_cuda)
    with session.watching():
        out = run()
    return session.report("script.py"), out


@pytest.mark.parametrize("shape", SHAPES)
def test_what_no_call_tells_of_is_audited_and_nothing_of_it_changes(shape):
    report, seen = watched(lambda: train(shape, 1.0, "cpu"), as_cuda=False)
    assert report.verdict.word is Health.SAFE
    assert not report.verdict.coverage.unseen
    assert report.verdict.coverage.elements == sum(one.numel() for one in seen)
    assert 0 in report.loop.recorded
    alone = train(shape, 1.0, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(seen, alone, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_overflow_there_is_an_error_at_its_line(shape):
    report, _ = watched(lambda: train(shape, 1e6))
    assert report.verdict.word is Health.UNSAFE
    assert "out * gain" in {f.origin.line and line_of(f.origin) for f in report.findings if f.origin}


def line_of(site):
    return linecache.getline(site.file, site.line).strip().removeprefix("hidden = ")


def test_bare_tensors_are_called_as_the_script_calls_them():
    report, _ = watched(lambda: train(bare, 1.0))
    names = {site.slot for site in report.low.sites if site.slot.startswith("param_grad")}
    assert names in ({"param_grad[weight]"}, {"param_grad[0]"})


def test_operations_of_an_uncalled_module_are_its_own():
    report, _ = watched(lambda: train(container, 1.0))
    ran = {site.module.rpartition(".")[2] for site in report.low.sites if site.op == "addmm"}
    assert ran == {"a", "b"}


def test_gradients_of_torch_func_that_an_optimizer_steps_by_are_compared():
    def run():
        torch.manual_seed(0)
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def loss(own, x):
            with torch.autocast("cuda", torch.bfloat16):
                return torch.func.functional_call(model, own, (x,)).float().square().mean()

        for _ in range(3):
            found = torch.func.grad(loss)(dict(model.named_parameters()), torch.randn(16, 8))
            for name, parameter in model.named_parameters():
                parameter.grad = found[name].detach()
            optimizer.step()

    report, _ = watched(run)
    assert report.verdict.word is Health.SAFE
    assert not report.verdict.coverage.unseen
    assert report.verdict.coverage.elements == 8 * 16 + 16 + 16 * 4 + 4


def test_where_fp32_is_ill_from_the_start_nothing_is_safe():
    def run():
        weight = torch.full((8, 4), float("nan"), requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (torch.randn(4, 8) @ weight).float().mean()
            loss.backward()
            optimizer.step()

    report, _ = watched(run)
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "FP32 has no finite loss or gradient either" in report.verdict.sentence


def test_a_region_of_autocast_before_a_call_costs_nothing_of_the_step(monkeypatch):
    """What begins with a region is given up where a call tells of the step: the journal and the step are as ever."""
    monkeypatch.setattr(looking_again, "half_leaves", list)  # other tests of this process keep some

    def run():
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                x = torch.randn(4, 8) * 2
                loss = model(x).float().mean()
            loss.backward()
            optimizer.step()

    report, _ = watched(run)
    assert not [site for site in report.low.sites if site.op == "randn"]
    assert [event.thing for event in report.loop.rounds[0] if event.kind is Kind.FORWARD] == ["model 1"]
