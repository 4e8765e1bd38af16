"""What is printed to be changed, where scripts of others were not healed by it: each advice names what has to go."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def errors_of(train, *given, **named):
    """Return the errors that a training has by ampcheck."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        train(*given, **named)
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


def two_losses(*, scaled):
    """A small loss of a head of its own, which has an optimizer of its own as well."""
    torch.manual_seed(0)
    trunk, head, other = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], 1e-3)
    second = torch.optim.SGD(other.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", 2.0**12)
    for _ in range(8):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16):
            made = trunk(x)
            loss = 1e-6 * F.mse_loss(head(made), x[:, :1])
            small = 1e-7 * F.mse_loss(other(made.detach()), x[:, 1:2])
        optimizer.zero_grad()
        second.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if scaled:
            scaler.scale(small).backward()
            scaler.step(second)
        else:
            small.backward()
            second.step()
        scaler.update()


def test_a_loss_that_is_not_scaled_beside_one_that_is_comes_before_what_underflows():
    first, *_ = errors_of(two_losses, scaled=False)
    assert (first.code, first.origin.line) == ("AMP408", line_of(two_losses, "small.backward()"))
    assert first.fix[1:3] == ("other.scale(small).backward()", "other.step(second)")
    assert not [one for one in errors_of(two_losses, scaled=True) if one.code == "AMP408"]


class Moments(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float16))
        self.register_buffer("square", torch.ones(8, dtype=torch.float16))

    def forward(self, x):
        with torch.no_grad():
            self.square.lerp_(x.square().mean(0).to(self.square.dtype), 0.5)
        return x / self.square.float().sqrt()


def normalises():
    torch.manual_seed(0)
    model = nn.Sequential(Moments(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(8):
        x = 1e3 * torch.randn(32, 8)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_what_a_cast_that_overflows_is_written_into_is_to_be_made_in_fp32_as_well():
    first, *_ = errors_of(normalises)
    assert (first.code, first.origin.line) == ("AMP101", line_of(Moments.forward, "self.square.lerp_"))
    made = line_of(Moments.__init__, '"square"')
    assert any(f":{made}, where model.0.square is made: dtype=torch.float32" in one for one in first.fix)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        return self.layer(x) * (1 + 1 / self.steps)


def counts():
    torch.manual_seed(0)
    model = Counting().to(torch.bfloat16)
    masters = [one.detach().float() for one in model.parameters()]
    optimizer = torch.optim.SGD(masters, 1e-4)
    for _ in range(400):
        loss = model(torch.randn(16, 8, dtype=torch.bfloat16)).float().square().mean()
        model.zero_grad()
        loss.backward()
        for master, one in zip(masters, model.parameters(), strict=True):
            master.grad = one.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, one in zip(masters, model.parameters(), strict=True):
                one.copy_(master)


def test_one_tensor_of_a_module_that_is_cast_as_a_whole_is_put_back_alone():
    found = [one for one in errors_of(counts) if one.code == "AMP504"]
    assert found
    assert found[0].fix[0].startswith("model.steps.data = model.steps.data.float()  # once ")
    assert f":{line_of(counts, '.to(torch.bfloat16)')} casts the whole model" in found[0].fix[0]


class Angles(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2, 1)

    def forward(self, hours, like):
        angle = hours.type_as(like) * torch.tensor(0.26).type_as(like)
        return self.mix(torch.cat([angle.sin(), angle.cos()], -1))


def turns():
    torch.manual_seed(0)
    model = Angles()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(8):
        hours = torch.rand(32, 1) * 40000
        like = torch.zeros(1, dtype=torch.bfloat16)
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(hours, like).float() - (0.26 * hours).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_casts_of_the_line_itself_have_to_go():
    first, *_ = errors_of(turns)
    assert first.origin.line == line_of(Angles.forward, "angle = hours")
    assert first.fix == ("# this line without its casts to half precision",)


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        made = self.layer(x)
        return made + torch.full_like(made, 2048.0)


def compares():
    torch.manual_seed(0)
    model = Shifted()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for _ in range(8):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.bfloat16):
            made = model(x)
        loss = F.mse_loss(made.float(), 2048.0 + x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_region_holds_lines_of_one_function_only():
    first, *_ = errors_of(compares)
    assert first.origin.line == line_of(Shifted.forward, "return made +")
    text = " ".join(first.fix)
    assert "this line, with .float() on what is read" in text
    assert " to " not in text


@pytest.mark.parametrize("lowers", [False, True])
def test_the_one_scale_of_a_script_is_the_one_in_its_verdict(lowers):
    torch.manual_seed(0)
    session, scale = Session(Schedule(), as_cuda=True), 2.0**9
    with session.watching():
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(48):
            x = torch.randn(64, 8) * (1e3 if step % 2 else 1.0)
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().sum()
            model.zero_grad()
            (loss * scale).backward()
            if all(bool(one.grad.isfinite().all()) for one in model.parameters()):
                for one in model.parameters():
                    one.grad.div_(scale)
                optimizer.step()
            elif lowers:
                scale /= 2
    sentence = session.report("script.py").verdict.sentence
    assert "2^0" not in sentence
    assert ("fp16 with loss scale 2^9" in sentence) is not lowers
