"""What a script makes itself, at the line that makes it: scales, states in half precision, weights it sends."""

import threading

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.makers import gradient_given
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def watched(script, *given, **said):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        got = script(*given, **said)
    assert not session.watcher.broken, session.watcher.not_seen
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return errors, got


class LossScale:
    """A dynamic loss scale as people write it."""

    def __init__(self, scale, lowest):
        self.scale, self.lowest = scale, lowest

    def took(self, finite):
        if not finite:
            self.scale = max(self.scale / 2, self.lowest)


class Task:
    """Fits a model of its own."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def fit(self, first, lowest, steps):
        """Yield of each step whether it is skipped."""
        model, scaling = self.model, LossScale(first, lowest)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(steps):
            x = torch.randn(16, 4)
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(x).float(), 3 * x[:, :1])
            optimizer.zero_grad()
            (loss * scaling.scale).backward()
            grads = [one.grad for one in model.parameters()]
            finite = all(bool(grad.isfinite().all()) for grad in grads)
            if finite:
                for grad in grads:
                    grad.div_(scaling.scale)
                optimizer.step()
            yield not finite
            scaling.took(finite)


def tasks(first, lowest, steps, *, rounds=8):
    """Do one task after the other, each with a scale of its own; return how many steps are skipped."""
    skipped = [one for _ in range(rounds) for one in Task().fit(first, lowest, steps)]
    return sum(skipped), len(skipped)


@pytest.mark.parametrize(("first", "anew"), [(2.0**32, True), (2.0**10, False)])
def test_a_scale_of_the_scripts_own_that_begins_again_for_each_task(first, anew):
    errors, (skipped, steps) = watched(tasks, first, 1.0, 12)
    assert (4 * skipped > steps) == anew  # as the script counts them itself
    assert [one.code for one in errors[:1]] == ["AMP417"] * anew
    assert all(one.origin.line == line_of(Task.fit, "LossScale(first") for one in errors[:1])
    assert not anew or "begins 8 times, at 2^32 again" in errors[0].message


@pytest.mark.parametrize(("lowest", "stays"), [(2.0**20, True), (1.0, False)])
def test_a_scale_of_the_scripts_own_that_falls_no_further_is_named_where_it_falls(lowest, stays):
    errors, (skipped, steps) = watched(tasks, 2.0**22, lowest, 60, rounds=1)
    assert (skipped == steps) == stays
    assert [one.code for one in errors[:1]] == ["AMP206"] * stays
    assert all(one.origin.line == line_of(LossScale.took, "self.scale = max") for one in errors[:1])


class Bounded(torch.amp.GradScaler):
    """A scaler with a floor."""

    def update(self, new_scale=None):
        super().update(new_scale)
        if self._scale is not None:
            self._scale.clamp_(min=2.0**22)


def bounded():
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), Bounded("cuda", init_scale=2.0**22)
    for _ in range(40):
        x = torch.randn(16, 4)
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(model(x).float(), 3 * x[:, :1])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


def test_a_scaler_with_a_floor_is_named_where_it_writes_the_scale():
    errors, ended = watched(bounded)
    assert ended == 2.0**22
    assert (errors[0].code, errors[0].origin.line) == ("AMP206", line_of(Bounded.update, "clamp_"))


def heights(line):
    """Train a head whose output is put back into metres, and into its own units again; FP32 begins at a line."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(64, 8)
    y = 0.05 * x @ torch.randn(8, 1) + 22800 / 70
    for _ in range(12):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(x)
            out = out.float() if line == "metres" else out
            metres = 70 * out + 22800
            metres = metres.float() if line == "units" else metres
            units = metres / 70
            loss = F.smooth_l1_loss(units, y, beta=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.weight.grad.clone()


def test_numbers_that_are_only_scaled_have_lost_their_bits_where_they_were_made():
    errors, low = watched(heights, "")
    assert (errors[0].code, errors[0].origin.line) == ("AMP501", line_of(heights, "metres = 70"))
    exact = watched(heights, "metres")[1]
    later = watched(heights, "units")[1]
    assert (low - exact).norm() > 0.15 * exact.norm()
    assert (later - exact).norm() > 0.15 * exact.norm()  # in FP32 from the later line on: that heals nothing


def reweighed(*, scaled):
    """Learn weights of samples through an inner step: the outer loss is small by the inner rate."""
    model = nn.Linear(8, 2)
    trust = nn.Parameter(torch.zeros(16))
    optimizer, outer = torch.optim.Adam([trust], 0.01), []
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
    inner = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        x, y = torch.randn(16, 8), torch.randint(0, 2, (16,))
        with torch.autocast("cuda", torch.float16):
            loss = 1e-6 * (trust.half() * F.cross_entropy(model(x), y, reduction="none").half()).sum()
        optimizer.zero_grad()
        inner.zero_grad()
        if scaled:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.step(inner)
            scaler.update()
        else:
            (loss * 1e-3).backward()
            optimizer.step()
            inner.step()
        outer.append(trust.grad.clone())
    return outer


def test_a_parameter_of_no_module_whose_gradient_is_zero_for_want_of_a_scale():
    errors, grads = watched(reweighed, scaled=False)
    assert not any(bool(grad.any()) for grad in grads)
    assert errors
    assert errors[0].code == "AMP408"
    assert "as most of the gradient of trust does" in errors[0].message
    errors, grads = watched(reweighed, scaled=True)
    assert all(bool(grad.any()) for grad in grads)
    assert not errors


def rounds(wire):
    """Let the main thread give clients their weights, and average what they send back."""
    server, truth = nn.Linear(64, 8), torch.randn(64, 8)

    class Client(threading.Thread):
        def __init__(self, weights):
            super().__init__()
            self.model = nn.Linear(64, 8)
            self.model.load_state_dict(weights)

        def run(self):
            optimizer = torch.optim.Adam(self.model.parameters(), 2e-5)
            for _ in range(2):
                x = torch.randn(32, 64)
                with torch.autocast("cuda", torch.bfloat16):
                    loss = F.mse_loss(self.model(x).float(), x @ truth)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.sent = {name: one.to(wire) for name, one in self.model.state_dict().items()}

    first = server.weight.detach().clone()
    for _ in range(12):
        clients = [
            Client({name: one.to(wire) for name, one in server.state_dict().items()}) for _ in range(3)
        ]
        for client in clients:
            client.start()
            client.join()
        means = {
            name: torch.stack([client.sent[name].float() for client in clients]).mean(0)
            for name in clients[0].sent
        }
        server.load_state_dict(means)
    return (server.weight.detach() - first.to(wire).float()).abs().mean()


def test_weights_that_travel_in_half_precision_both_ways():
    errors, moved = watched(rounds, torch.bfloat16)
    assert (errors[0].code, errors[0].origin.line) == ("AMP504", line_of(rounds, "self.sent ="))
    errors, moves = watched(rounds, torch.float32)
    assert not errors
    assert moved < 0.5 * moves


def centred(dtype):
    """Train on what is left of levels that were kept, once what they have in common is taken away."""
    torch.manual_seed(1)
    levels = torch.zeros(64, 8, dtype=dtype)
    levels += torch.randn(64, 8) + 8000.0
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(12):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(levels.float() - 8000.0)
        optimizer.zero_grad()
        F.mse_loss(out.float(), torch.ones(64, 1)).backward()
        optimizer.step()
    return len(levels.unique())


def test_what_was_rounded_before_is_named_where_it_is_made():
    errors, few = watched(centred, torch.float16)
    assert (errors[0].code, errors[0].origin.line) == ("AMP509", line_of(centred, "levels = torch"))
    errors, many = watched(centred, torch.float32)
    assert not errors
    assert few < 8 < many  # fp16 has steps of 4 there


def counted(dtype):
    """Train, and when that is over add up what the model says of many inputs."""
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(30):
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(16, 8))
        optimizer.zero_grad()
        out.float().square().mean().backward()
        optimizer.step()
    total = torch.zeros(4, dtype=dtype)
    for _ in range(20):
        total += 100 + torch.rand(4)
    return total, model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_added_up_in_half_precision_after_the_training_is_not_safe(dtype):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        kept = counted(dtype)
    verdict = session.report("script.py").verdict
    assert verdict.word is (Health.PARTLY_AUDITED if dtype is torch.bfloat16 else Health.SAFE)
    assert ("1 bfloat16 tensor of 4 elements changed" in verdict.sentence) == (dtype is torch.bfloat16)
    assert kept[0].dtype is dtype


def test_the_one_line_that_gives_a_gradient(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("p.grad = None\nalpha.grad = -lr * (a - b)\n")
    two.write_text("p.grad = a\nq.grad = b\n")
    assert gradient_given([str(one)]) == (str(one), 2)
    assert gradient_given([str(two)]) == ("", 0)
    assert gradient_given([str(one), str(two)]) == ("", 0)
