"""Numbers in half precision that a script hands from step to step: FP32 goes on from its own."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.execution import run_op
from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.script.rows_carried import IN_A_ROW
from ampcheck.observe.script.state import carried
from ampcheck.observe.script.state.carried import outgrown, paces, stands_still
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import UpdateLoss
from ampcheck.values.verdict import Health

STEPS = 40


class Memory(nn.Module):
    """Adds a little to a state in each step, and reads it beside its input."""

    def __init__(self, rate, dtype, *, hands_out):
        super().__init__()
        self.rate, self.dtype, self.hands_out = rate, dtype, hands_out
        self.read = nn.Linear(8, 1)
        self.state = torch.ones(4, 4, dtype=dtype)

    def forward(self, x, state):
        state = self.state if state is None else state
        state = state + (self.rate * x).to(self.dtype)
        if not self.hands_out:
            self.state = state.detach()
        told = 0.01 / self.rate * (state - 1).float()
        return self.read(torch.cat([x, told], 1)), state.detach()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [0.5 + torch.rand(4, 4, generator=generator) for _ in range(STEPS)]


def train(model, optimizer, state=None):
    """Train, and yield the gradient of each step."""
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    for number, x in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out, kept = model(x, state)
            loss = F.mse_loss(out.float(), torch.full((4, 1), 0.01 * number))
        state = kept if model.hands_out else None
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield model.read.weight.grad.clone()


def audit(rate, dtype=torch.float16, *, hands_out=True):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Memory(rate, dtype, hands_out=hands_out)
        list(train(model, torch.optim.SGD(model.parameters(), 1e-3)))
    return session.report("script.py")


def apart_by_hand(rate, steps):
    """Return how far the state is off after some steps, as a part of how far it should have come."""
    wide, low = torch.ones(4, 4), torch.ones(4, 4, dtype=torch.float16)
    for x in batches()[:steps]:
        wide, low = wide + rate * x, low + (rate * x).half()
    return float((wide - low.float()).norm() / (wide - 1).norm())


@pytest.mark.parametrize("hands_out", [True, False], ids=["through the loop", "in the module"])
def test_a_state_whose_changes_are_rounded_away_is_an_error_at_the_line_that_adds_them(hands_out):
    assert apart_by_hand(1e-4, IN_A_ROW) == 1.0  # none of them is kept
    report = audit(1e-4, hands_out=hands_out)
    assert report.verdict.word is Health.UNSAFE
    first = report.findings[0]
    assert first.code == "AMP504"  # and what is off because of it comes behind
    assert "AMP501" in {one.code for one in report.findings if one.severity is Severity.ERROR}
    with open(__file__, encoding="utf-8") as file:
        assert "state + (self.rate * x)" in file.readlines()[first.sites[0].line - 1]
    assert report.outcomes["rounded"].error < 0.01


@pytest.mark.parametrize("hands_out", [True, False], ids=["through the loop", "in the module"])
def test_a_state_whose_changes_are_kept_is_safe_and_nothing_is_unknown(hands_out):
    assert apart_by_hand(0.05, IN_A_ROW) < 0.01
    report = audit(0.05, hands_out=hands_out)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence
    assert not any(GIVEN in what for what in report.not_audited)


def test_fp32_goes_on_from_what_it_would_have():
    """What stands beside the script in the last step of those in a row is what a plain FP32 run has."""
    report = audit(1e-4)
    wide = torch.ones(4, 4)
    for x in batches()[:STEPS]:
        wide = wide + 1e-4 * x
    told = max(
        stats.amax
        for site, stats in report.reference.sites.items()
        if site.op == "mul" and site.slot == "output" and stats.amax < 1
    )
    assert told > 0.5 * float(0.01 / 1e-4 * (wide - 1).max()) * IN_A_ROW / STEPS


def test_a_state_in_full_precision_asks_for_no_steps_in_a_row():
    report = audit(1e-4, torch.float32)
    assert len(report.loop.recorded) <= 3
    assert report.verdict.word is Health.SAFE


def test_the_script_trains_as_without():
    torch.manual_seed(0)
    with torch.random.fork_rng():
        session = Session(Schedule(), as_cuda=True)
        with session.watching():
            model = Memory(1e-4, torch.float16, hands_out=True)
            list(train(model, torch.optim.SGD(model.parameters(), 1e-3)))
    torch.manual_seed(0)
    session = Session(Schedule(steps=frozenset({10**6})), as_cuda=True)
    with session.watching():
        alone = Memory(1e-4, torch.float16, hands_out=True)
        list(train(alone, torch.optim.SGD(alone.parameters(), 1e-3)))
    assert all(map(torch.equal, model.parameters(), alone.parameters()))


class Weights:
    """Weights of two groups of losses, which grow where the loss is large: a product that is kept anew in each step."""

    def __init__(self, rate, dtype):
        self.rate, self.now = rate, torch.full((2,), 0.5, dtype=dtype)

    def __call__(self, losses):
        with torch.no_grad():
            self.now = self.now * torch.exp(self.rate * losses).to(self.now.dtype)
        return (self.now.float() * losses).sum()


def reweighted(rate, dtype):
    """Train on two groups and return the session and the weights at the end."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, weights = nn.Linear(4, 1), Weights(rate, dtype)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for x in batches():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                out = model(x)
            loss = weights((out.float() - torch.tensor([1.0, -1.0])).square().mean(0))
            loss.backward()
            optimizer.step()
    return session.report("script.py"), weights.now.float()


@pytest.mark.parametrize("rate", [5e-4, 0.1])
def test_what_stands_still_where_fp32_moves_on_is_an_error(rate):
    """Each product rounds to what it was: so it stays for ever, and FP32's has gone some units on in as many steps."""
    report, kept = reweighted(rate, torch.bfloat16)
    _, wide = reweighted(rate, torch.float32)
    stands = rate == 5e-4
    assert bool((kept == 0.5).all()) is stands
    assert bool(((wide - 0.5).abs() > 2.0**-8).any())
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP504"] if stands else [])
    if stands:
        assert "weights.now" in errors[0].message
        assert errors[0].origin.line == line_of(Weights.__call__, "self.now = self.now *")


def test_what_stands_still_and_has_the_shape_of_a_weight_is_not_judged():
    """An optimizer may keep there what rounding has taken from the weight: FP32 has other numbers there, or none."""
    before, after = torch.ones(4, 2, dtype=torch.bfloat16), torch.ones(4, 2)
    first, last = {"it": (before, after, None)}, {"it": (before, after + 0.5, None)}
    weights = {torch.Size((4, 2))}
    for other in (-0.5, 1.5):
        assert stands_still(first, {"it": (before, after + other, None)}, weights) == {"it": None}
    for near in (weights, set()):
        assert stands_still(first, last, near)["it"] == UpdateLoss("it", 8, 8)
    few = after.clone()
    few[0, 0] = 2
    assert stands_still(first, {"it": (before, few, None)}, set()) == {"it": None}
    assert stands_still(first, {"it": (before, after + 1e-4, None)}, set()) == {}


@pytest.mark.parametrize(
    ("way", "went", "lost"),
    [
        (10, 3, True),
        (10, 8, False),
        (10, -10, False),
    ],  # the last goes elsewhere, as chaos does
)
def test_what_goes_a_small_part_of_the_way_is_lost_where_that_is_many_units(way, went, lost):
    unit = 2.0**-7  # of bfloat16 at 1
    first = torch.ones(6, 4, dtype=torch.bfloat16)
    last, end = first + went * unit, torch.ones(6, 4) + way * unit
    found = stands_still({"it": (first, torch.ones(6, 4), None)}, {"it": (last.bfloat16(), end, None)}, set())
    assert found == ({"it": UpdateLoss("it", 24, 24)} if lost else {})


@pytest.mark.parametrize(("now", "unknown"), [(40.0, False), (2000.0, True)])
def test_what_has_grown_since_it_was_compared_is_not_judged(now, unknown, monkeypatch):
    """A count that goes on by 3 a step is kept at 40, and lost at 2000, where bfloat16 has steps of 8."""
    before, after = torch.full((4,), 10.0), torch.full((4,), 34.0)
    known = paces(
        {"counts": (before.bfloat16(), before, None)}, {"counts": (after.bfloat16(), after, None)}, 8
    )
    counts = torch.full((4,), now, dtype=torch.bfloat16)
    assert bool((counts + 3.0 == counts).all()) is unknown
    names = lambda held: {id(one): "counts" if one is counts else "another" for one in held}  # noqa: E731
    monkeypatch.setattr(carried, "names_of", names)
    assert outgrown(known) == (["counts"] if unknown else [])


def worn(t):
    """Return the wear of some machines after t steps."""
    return (0.004 * t * torch.linspace(0.6, 1.4, 24))[:, None]


def add_wear(wear, dtype):
    return wear + (0.004 * torch.linspace(0.6, 1.4, 24))[:, None].to(dtype)


@pytest.mark.parametrize(("dtype", "lost"), [(torch.bfloat16, True), (torch.float32, False)])
def test_what_is_carried_is_compared_again_when_its_steps_come_to_half_a_unit(dtype, lost):
    """It is added to for long before that: the first steps that are compared lose nothing."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        net = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        wear = torch.zeros(24, 1, dtype=dtype)
        for t in range(460):
            with torch.autocast("cuda", torch.bfloat16):
                wear = add_wear(wear, dtype)
                loss = F.mse_loss(net(wear).float(), torch.exp(-worn(t + 1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert (float((wear.float() / worn(460) - 1).abs().mean()) > 0.1) is lost
    found = [one for one in session.report("script.py").findings if one.code == "AMP504"]
    assert [one.origin.line for one in found] == [line_of(add_wear, "return wear +")] * lost


def test_two_memories_in_one_tensor_are_carried_each_by_itself():
    """What was seen and what came next are parts of one tensor: neither is given FP32's numbers of the other."""
    seen, after = torch.zeros(2, 8, dtype=torch.float16)
    begins = seen[:4]
    wide = torch.randn(2, 8)
    known, next_one = Shadow(run_op), Shadow(run_op)
    known.replace(seen, wide[0])
    known.replace(after, wide[1])
    kept = carried.Carried([known], [], lambda _: False, {}, asked=True)
    kept.give([next_one])
    for low, one in ((seen, wide[0]), (after, wide[1]), (begins, wide[0, :4])):
        assert torch.equal(next_one.of(low), one)
    sizes = [len(one) for one, _, _ in kept.numbers().values() if one.dim() == 1]
    assert sorted(sizes) == [4, 8, 8]
