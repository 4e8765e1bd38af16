"""State in half precision that a loop changes beside its training: its copy in FP32 is the one that torch has."""

import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

import ampcheck
from ampcheck.observe.script.state.half_averages import HalfAverages
from ampcheck.observe.script.state.half_judged import State, compare
from ampcheck.observe.script.state.half_state import Following
from ampcheck.observe.script.state.samples import sample
from ampcheck.observe.script.state.untrained import untrained
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.values.findings import Severity
from ampcheck.values.verdict import Health

STEPS = 160


def lerp(state, value, rate):
    state.lerp_(value.to(state.dtype), rate)


def two_writes(state, value, rate):
    state.mul_(1 - rate).add_(value.to(state.dtype), alpha=rate)


def operators(state, value, rate):
    state *= 1 - rate
    state += rate * value.to(state.dtype)


def each(state, value, rate):
    torch._foreach_mul_([state], 1 - rate)
    torch._foreach_add_([state], [value.to(state.dtype)], alpha=rate)


def copied(state, value, rate):
    state.copy_((1 - rate) * state.float() + rate * value)


def by_rows(state, value, rate):
    rows = torch.arange(len(state))
    old = state[rows]
    state[rows] = old + rate * (value.to(state.dtype) - old)


def data(state, value, rate):
    state.data.mul_(1 - rate).add_(value.to(state.dtype), alpha=rate)


def new_data(state, value, rate):
    state.data = (1 - rate) * state.data + rate * value.to(state.dtype)


def of_views(state, value, rate):
    for row, new in zip(state, value.to(state.dtype), strict=True):
        row.lerp_(new, rate)


WAYS = [lerp, two_writes, operators, each, copied, by_rows, data, new_data, of_views]


def values(shape=(32, 8)):
    """Yield weights that drift, as those of a training do."""
    torch.manual_seed(0)
    sign, size, speed = torch.randn(shape).sign(), 0.5 + torch.rand(shape) / 2, 0.8 + 0.4 * torch.rand(shape)
    for step in range(STEPS):
        yield sign * (size + 0.006 * step * speed)


def followed(way, dtype, rate, given):
    """Follow a state; return the state, FP32's by plain torch, and what was found."""
    state = next(iter(given)).to(dtype)
    wide, first = state.float(), state.clone()
    following = Following([("state", state)])
    for value in given[1:]:
        with torch.no_grad():
            way(state, value, rate)
            way(wide, value.to(dtype).float() if way is not copied else value, rate)
        following.step_ends()
    mine = following._references.of(state)
    following.judge(last=True)
    following.end()
    return first.float(), state.float(), wide, mine, following.states[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_changes_are_made_to_the_copy_in_fp32(way, dtype, monkeypatch):
    monkeypatch.setattr("ampcheck.observe.script.state.half_state.compare", lambda *_, **__: None)
    first, low, wide, mine, state = followed(way, dtype, 1e-3, list(values()))
    assert not state.missed
    assert float((mine - wide).norm()) < 0.01 * float((wide - first).norm())
    assert not torch.equal(low, wide)
    assert not torch.equal(first, wide)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "rate", "lost"),
    [
        (torch.bfloat16, 1e-3, True),
        (torch.float16, 2e-4, True),
        (torch.bfloat16, 0.1, False),
        (torch.float16, 0.01, False),
    ],
)
def test_changes_are_lost_where_plain_torch_says_so(way, dtype, rate, lost):
    first, low, wide, _, state = followed(way, dtype, rate, list(values()))
    share = float((wide - low).abs().sum() / (wide - first).abs().sum())
    assert share > 0.75 if lost else share < 0.1
    assert bool(state.losses) is lost
    assert state.judged
    assert way is new_data or state.place[0].endswith("test_half_state.py")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(32, 8), (2, 4)])
def test_an_average_that_is_where_it_belongs_is_fine_although_small_changes_are_rounded_away(
    way, dtype, shape
):
    torch.manual_seed(1)
    centre = torch.randn(shape)
    given = [centre * (1 + 0.02 * torch.randn(shape)) for _ in range(STEPS)]
    _first, low, wide, _, state = followed(way, dtype, 0.1, given)
    assert not state.losses
    assert float((low - wide).norm() / wide.norm()) < 0.04


def test_a_queue_and_a_copy_of_other_weights_are_fine():
    torch.manual_seed(0)
    queue, copy = torch.randn(64, 4).half(), torch.randn(16).bfloat16()
    following = Following([("queue", queue), ("copy", copy)])
    for step in range(STEPS):
        queue[8 * (step % 8) : 8 * (step % 8) + 8] = torch.randn(8, 4)
        copy.copy_(torch.randn(16))
        following.step_ends()
    following.end()
    assert all(state.fine for state in following.states)


def test_what_was_not_seen_is_not_judged():
    torch.manual_seed(0)
    state, kept, given = torch.randn(32).bfloat16(), torch.randn(32).bfloat16(), torch.randn(32)
    following = Following([("state", state), ("kept", kept)])
    for step in range(STEPS):
        kept.lerp_(given.bfloat16(), 0.2)
        state.lerp_(given.bfloat16(), 1e-3)
        if step == 3:
            following.pause()
            state.lerp_(given.bfloat16(), 1e-3)
            following.resume()
        following.step_ends()
    following.end()
    missed, seen = following.states
    assert missed.missed
    assert not missed.judged
    assert seen.fine


def test_weights_that_were_exchanged_with_the_average_take_no_reference_from_it():
    torch.manual_seed(0)
    average, weights = torch.randn(32, 8).half(), torch.randn(32, 8)
    following = Following([("average", average)])
    weights.data.copy_(average)
    assert following._references.of(weights) is None
    following.end()


def test_nothing_that_a_gradient_flows_through_is_repeated():
    average = torch.randn(8, 8).bfloat16()
    following = Following([("average", average)])
    x = torch.randn(4, 8, requires_grad=True)
    out = (x.bfloat16() * average[0]) @ average
    assert len(following._references._references) == 1
    out.sum().backward()
    assert len(following._references._references) == 1
    following.end()


@pytest.mark.parametrize(("size", "lost"), [(1e-9, True), (1e-2, False)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_average_of_what_is_smaller_than_half_precision_holds_is_lost(size, lost, dtype):
    torch.manual_seed(0)
    average, witness = torch.zeros(32, 8, dtype=dtype), torch.zeros(32, 8)
    following = Following([("filter", average)])
    for _ in range(64):
        value = size * (1 + torch.rand(32, 8))
        average.mul_(0.9).add_(value.to(dtype), alpha=0.1)
        witness.mul_(0.9).add_(value, alpha=0.1)
        following.step_ends()
    following.judge(last=True)
    following.end()
    gone = bool((average == 0).all()) and bool((witness != 0).all())
    assert gone is (lost and dtype is torch.float16)
    assert bool(following.states[0].losses) is gone


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("speed", [1e-4, 1e-3, 4e-3])
def test_what_is_said_after_sixteen_steps_is_what_plain_torch_finds_after_many(rate, speed):
    torch.manual_seed(0)
    first, direction = 0.5 + torch.rand(32, 8) / 2, torch.randn(32, 8).sign()
    low, said = first.bfloat16(), False
    start, wide = low.float(), low.float()
    following, unit = Following([("state", low)]), 2.0 ** (torch.frexp(start).exponent - 8)
    for step in range(1, 2049):
        value = (start + step * speed * direction).bfloat16()
        low.lerp_(value, rate)
        wide.lerp_(value.float(), rate)
        if step <= 16:
            following.step_ends()
        if step == 16:
            following.end()
            said = bool(following.states[0].losses)
        if float(((wide - start).abs() / unit).median()) > 16:
            break
    stuck = float(((wide - low.float()).abs() > 8 * unit).float().mean())
    assert said is (stuck > 0.5 and step < 600)


def test_a_copy_of_weights_that_are_kept_in_fp32_is_fine_however_little_they_move():
    torch.manual_seed(0)
    master = torch.randn(32, 8)
    weights, rounded = master.bfloat16(), master.bfloat16()
    following = Following([("weights", weights), ("rounded", rounded)])
    for _ in range(16):
        master += 1e-4
        weights.copy_(master)
        rounded.copy_(master + 0.004 * master.abs())
        rounded.mul_(1.0)
        following.step_ends()
    following.judge(last=True)
    following.end()
    assert following.states[0].fine
    assert not any(state.losses for state in following.states)


def pulled(dtype, rate, rounds=48, follow=False):
    """Give weights to a model, train it, and move them towards it, again and again; return how far they have moved."""
    torch.manual_seed(0)
    weights = (0.5 + torch.rand(32, 8)).to(dtype)
    first, following = weights.clone(), Following([("weights", weights)]) if follow else None
    model = nn.Parameter(torch.zeros(32, 8))
    for _ in range(rounds):
        with torch.no_grad():
            model.copy_(weights)
        for _ in range(2):
            if following is not None:
                following.pause()
            model.data.add_(0.004)  # what an optimizer adds
            if following is not None:
                following.resume()
                following.step_ends()
        with torch.no_grad():
            weights.add_((rate * (model - weights.float())).to(dtype))
    if following is None:
        return float((weights.float() - first.float()).mean()), ()
    following.judge(last=True)
    following.end()
    return float((weights.float() - first.float()).mean()), following.states[0].losses


@pytest.mark.parametrize(
    ("dtype", "rate"), [(torch.bfloat16, 0.1), (torch.bfloat16, 4.0), (torch.float16, 0.1)]
)
def test_weights_that_are_given_to_a_model_and_moved_towards_it_lose_what_plain_torch_says(dtype, rate):
    moved, losses = pulled(dtype, rate, follow=True)
    wide, _ = pulled(torch.float32, rate)
    assert bool(losses) is (moved < wide / 2)
    assert bool(losses) is (dtype is torch.bfloat16 and rate == 0.1)


@pytest.mark.parametrize(
    ("lasts", "times", "lost"), [(False, 1.0, True), (False, 0.5, False), (True, 0.5, True)]
)
@pytest.mark.parametrize("gone", [0.45, 0.6, 0.9])
def test_numbers_that_get_too_little_of_the_way_together_are_lost(lasts, times, lost, gone):
    """Most move little and stand still; of the others, some go all of their way.

    What forgets may be units behind, and half of its way; where nothing is forgotten a quarter is too much.
    """
    torch.manual_seed(0)
    part = 0.75 if lasts else 0.5
    first = (0.5 + torch.rand(1000) / 4).bfloat16()
    unit, kind = 2.0**-8, torch.linspace(0, 1, 1000)
    way = times * unit * torch.where(kind < 0.55, 6.0, 40.0)
    went = way.where((kind < 0.55 + 0.45 * gone) & (kind >= 0.55), 0.0)
    weights = (first.float() + went).bfloat16()
    state = State(weakref.ref(weights), "weights", first, 0, rounds=20, lasts=lasts)
    compare(state, weights, first.float() + way, torch.zeros(1000, dtype=torch.bool), last=True)
    little = float((way * went).sum() / way.square().sum()) < part
    assert bool(state.losses) is (lost and little)
    for loss in state.losses:
        short = int((went < part * way).sum())
        assert (loss.moved, loss.stuck) == (1000, short)  # counted one by one


@pytest.mark.parametrize(("units", "gone", "lost"), [(100, 0.6, True), (100, 0.9, False), (30, 0.6, False)])
def test_an_average_may_be_some_units_behind_but_not_a_quarter_of_a_very_long_way(units, gone, lost):
    first = torch.linspace(0.5, 0.7, 1000).bfloat16()
    way = 2.0**-8 * torch.full((1000,), float(units))
    weights = (first.float() + gone * way).bfloat16()
    state = State(weakref.ref(weights), "weights", first, 0, rounds=20)
    compare(state, weights, first.float() + way, torch.zeros(1000, dtype=torch.bool), last=True)
    assert bool(state.losses) is lost


@pytest.mark.parametrize("rounds", [16, 15])
@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("start", [9.0, 5.0])
def test_a_sum_whose_every_addition_is_rounded_up_runs_ahead(start, lasts, rounds):
    """Bfloat16 has steps of a 16th from 8 on: adding a 24th adds a 16th. From 4 on it adds a 32nd, which is less."""
    first = torch.full((48,), start).bfloat16()
    clock, wide = first.clone(), first.float()
    for _ in range(16):
        clock += 1.0 / 24
        wide = wide + 1.0 / 24
    went, way = float((clock.float() - first.float()).mean()), float((wide - first.float()).mean())
    assert went / way == pytest.approx(1.5 if start == 9.0 else 0.75, rel=1e-3)
    state = State(weakref.ref(clock), "clock", first, 0, rounds=rounds, lasts=lasts)
    compare(state, clock, wide, torch.zeros(48, dtype=torch.bool), last=False)
    assert [one.wrong for one in state.losses] == ([48] if start == 9.0 and lasts and rounds == 16 else [])


@pytest.mark.parametrize("still", [True, False])
def test_what_is_behind_in_a_few_numbers_that_go_nearly_all_of_the_way_is_not_judged_fine(still):
    """Of those that move furthest fewer than half stand still, of all a few: none of this is most of anything."""
    first = torch.full((1000,), 0.5).bfloat16()
    way = 2.0**-8 * torch.full((1000,), 8.0)
    way[:6], way[6:10] = 4000.0 * 2.0**-8, 32000.0 * 2.0**-8
    went = way.clone()
    went[6:10] *= 0.0 if still else 1.0
    weights = (first.float() + went).bfloat16()
    state = State(weakref.ref(weights), "weights", first, 0, rounds=20)
    compare(state, weights, first.float() + way, torch.zeros(1000, dtype=torch.bool), last=True)
    assert not state.losses
    assert state.fine is not still


@pytest.mark.parametrize(
    ("was_kept", "lasts", "off", "kept"),
    [
        (True, False, 1, True),
        (True, False, 6, False),  # units
        (True, True, 1, False),
        (False, False, 1, False),
    ],
)
def test_an_average_that_has_arrived_stays_known_as_long_as_it_is_near(was_kept, lasts, off, kept):
    """FP32 moves it by two units to and fro: one step alone would say that most of that is lost."""
    unit, weights = 2.0**-8, torch.full((20,), 0.5, dtype=torch.bfloat16)
    wide = torch.full((20,), 0.5 + off * unit)
    state = State(weakref.ref(weights), "spread", weights.clone(), 0, rounds=16, kept=was_kept, lasts=lasts)
    compare(state, weights, wide, torch.zeros(20, dtype=torch.bool), last=False)
    assert state.losses == ()
    assert state.kept is kept


# -- in a loop that is watched


def trained(update, dtype, steps=200, watch=True, model=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    average = [parameter.detach().to(dtype).clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []

    def loop():
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(16, 8)
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.mse_loss(model(x), torch.sin(3 * x[:, :4]))
            loss.backward()
            optimizer.step()
            update(average, [parameter.detach() for parameter in model.parameters()])
            losses.append(float(loss.detach()))

    if not watch:
        loop()
        return losses, average, None
    with ampcheck.watch(model, optimizer) as watching:
        loop()
    return losses, average, watching.report()


def average_with(rate):
    def update(average, parameters):
        for held, parameter in zip(average, parameters, strict=True):
            held.lerp_(parameter.to(held.dtype), rate)

    return update


def in_a_thread(rate):
    def update(average, parameters):
        thread = threading.Thread(target=average_with(rate), args=(average, parameters))
        thread.start()
        thread.join()

    return update


@pytest.mark.parametrize("make", [average_with, in_a_thread])
def test_an_average_that_stands_still_is_an_error_at_its_line(make):
    _, average, report = trained(make(1e-3), torch.bfloat16)
    _, witness, _ = trained(average_with(1e-3), torch.float32, watch=False)
    apart = [float((a.float() - b).norm() / b.norm()) for a, b in zip(average, witness, strict=True)]
    (error,) = [one for one in report.findings if one.severity is Severity.ERROR]
    assert max(apart) > 0.02
    assert (error.code, error.sites[0].module) == ("AMP504", "average")
    assert error.sites[0].file.endswith("test_half_state.py")
    assert report.verdict.word is Health.UNSAFE


def test_half_weights_whose_optimizer_is_gone_are_no_average():
    def train():
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(16, 8).bfloat16()).float().square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = nn.Linear(8, 4).bfloat16()
    with ampcheck.watch() as watching:
        train()
    assert "beside training" not in watching.report().verdict.sentence


@pytest.mark.parametrize(("rate", "steps", "lost"), [(1e-3, 20, True), (1e-3, 10, False), (0.1, 20, False)])
def test_an_average_with_a_long_memory_is_judged_after_few_steps(rate, steps, lost):
    _, _, report = trained(average_with(rate), torch.bfloat16, steps)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [(one.code, one.sites[0].module) for one in errors] == ([("AMP504", "average")] if lost else [])
    assert (report.verdict.word is Health.UNSAFE) is lost


@pytest.mark.parametrize(
    ("steps", "word"), [(120, Health.SAFE), (262, Health.PARTLY_AUDITED), (400, Health.UNSAFE)]
)
def test_a_counter_is_lost_once_one_is_less_than_half_a_unit(steps, word):
    counter = torch.zeros((), dtype=torch.bfloat16)

    def count(*_):
        counter.add_(1)

    _, _, report = trained(count, torch.bfloat16, steps)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert float(counter) == min(steps, 256)
    lost = [("AMP504", "param[counter]")] if word is Health.UNSAFE else []
    assert [(one.code, one.sites[0].slot) for one in errors] == lost
    assert report.verdict.word is word


@pytest.mark.parametrize("gone", [False, True])
def test_what_was_not_judged_is_said_although_it_is_gone_at_the_end(gone):
    held = [torch.ones(64, dtype=torch.bfloat16)]
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with ampcheck.watch(model, optimizer) as watching:
        for step in range(40):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            if step % 3 == 0:
                ahead = torch.tensor(held[0].tolist()) + 0.02  # as weights that were trained from there
                held[0].add_((0.05 * (ahead - held[0].float())).bfloat16())
        assert bool((held[0] == 1).all())  # FP32 would have moved on and on
        if gone:
            held.clear()
    sentence = watching.report().verdict.sentence
    assert "1 bfloat16 tensor of 64 elements changed beside training" in sentence


@pytest.mark.parametrize("make", [average_with, in_a_thread])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_average_that_follows_is_no_error_and_was_judged(dtype, make):
    _, _, report = trained(make(0.2), dtype)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


@pytest.mark.parametrize("make", [average_with, in_a_thread])
def test_training_and_averages_are_the_same_to_the_last_bit_and_nothing_is_left(make):
    names = {name for name in vars(torch.Tensor) if name.endswith("_")}
    watched, bare = trained(make(1e-3), torch.bfloat16), trained(make(1e-3), torch.bfloat16, watch=False)
    assert watched[0] == bare[0]
    assert all(torch.equal(a, b) for a, b in zip(watched[1], bare[1], strict=True))
    assert {name for name in vars(torch.Tensor) if name.endswith("_")} == names
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert torch._foreach_mul_.__module__ != "ampcheck.observe.script.state.half_averages"


# -- what a model holds, written outside of its forward


class Prior(nn.Module):
    def __init__(self, dtype, inside):
        super().__init__()
        self.fc, self.inside = nn.Linear(8, 4), inside
        self.register_buffer("counts", torch.ones(4, dtype=dtype))

    def forward(self, x, count):
        if self.inside:
            count(self.counts)
        return self.fc(x) + (self.counts.float() / self.counts.float().sum()).log()


def index_add(counts, classes):
    counts.index_add_(0, classes, torch.ones(len(classes), dtype=counts.dtype))


def row_by_row(counts, classes):
    for at in classes[:8].tolist():
        counts[at] = counts[at] + 0.5


def out(counts, classes):
    torch.add(counts, torch.ones_like(counts), out=counts)


def both(counts, classes):
    torch._foreach_add_([counts], 1.0)


def from_fp32(counts, classes):
    counts.copy_(counts.float() + torch.bincount(classes, minlength=4) / 64)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("count", [index_add, row_by_row, out, both, from_fp32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_buffer_that_is_written_outside_of_the_forward_is_followed(count, dtype, inside):
    torch.manual_seed(0)
    model = Prior(dtype, inside)
    model.counts.fill_(256)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with ampcheck.watch(model, optimizer) as watching:
        for _ in range(48):
            classes = torch.randint(0, 4, (128,))
            if not inside:
                count(model.counts, classes)
            with torch.autocast("cpu", torch.bfloat16):
                out = model(torch.randn(128, 8), lambda counts, now=classes: count(counts, now))
                loss = nn.functional.cross_entropy(out.float(), classes)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    report = watching.report()
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ["AMP504"] * (dtype is torch.bfloat16)
    assert report.verdict.word is (Health.SAFE if dtype is torch.float32 else Health.UNSAFE)
    assert all(one.sites[0].file.endswith("test_half_state.py") for one in errors)


@pytest.mark.parametrize(
    ("first", "by", "dtype"),
    [(1984.0, 1.0, torch.float16), (40_000.0, 400.0, torch.float16), (256.0, 2.0, torch.bfloat16)],
)
def test_a_sum_that_was_fine_at_first_is_followed_as_long_as_another_state_is(first, by, dtype):
    """A counter that comes to stand still, and a sum that becomes inf, beside a mean that is where it belongs."""
    total, mean = torch.tensor(first, dtype=dtype), torch.ones(4, dtype=dtype)
    wide = total.double()
    following = Following([("total", total), ("mean", mean)])
    for step in range(400):
        total.add_(by)
        wide.add_(by)
        mean.add_((-1) ** step * 1e-5)
        following.step_ends()
    following.judge(last=True)
    following.end()
    assert not 0.9 < float(total) / float(wide) < 1.1
    assert following.states[0].losses
    assert not following.states[1].losses


@pytest.mark.parametrize(("often", "lost"), [(8.0, True), (1.0, False)])
def test_counts_of_what_comes_often_are_lost_although_most_counts_are_right(often, lost):
    """The witness counts in FP64: nearly all of the counting is of few elements, and these stand at 256."""
    random = torch.Generator().manual_seed(0)
    weights = torch.ones(100)
    weights[:10] = often
    seen, right = torch.ones(100, dtype=torch.bfloat16), torch.ones(100, dtype=torch.float64)
    for step in range(80):
        if step == 20:
            following = Following([("seen", seen)])
        drawn = torch.multinomial(weights, 300, replacement=True, generator=random)
        for counted in (seen, right):
            counted.index_add_(0, drawn, torch.ones(300, dtype=counted.dtype))
        if step >= 20:
            following.step_ends()
    following.judge(last=True)
    following.end()
    apart = ((right - seen.double()).abs() > 0.1 * right).double().mean()
    assert (0.05 < apart < 0.3) if lost else apart == 0
    assert bool(following.states[0].losses) is lost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_remembered_of_a_state_is_not_found_as_another(dtype):
    """It was: with every look through memory there was twice as much to look at."""
    state = torch.arange(300.0).to(dtype)
    remembered = sample(state)
    assert torch.equal(remembered, state[:: 300 // 64].float())
    found = {id(tensor) for tensor in untrained().tensors}
    assert id(state) in found
    assert id(remembered) not in found


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_sum_that_overflows_long_after_it_was_fine_is_lost(dtype, read):
    """It is followed now and then; the step in which it overflows is hardly among those."""
    sums, means = torch.zeros(32, dtype=dtype), []

    def add(*_):
        sums.add_(torch.full((32,), 300.0, dtype=dtype))
        means.append(float(sums[0]) if not read else (sums / (len(means) + 1)).mean())

    _, _, report = trained(add, torch.float32, 300)
    errors = [(one.code, one.sites[0].slot) for one in report.findings if one.severity is Severity.ERROR]
    overflows = dtype is torch.float16
    assert bool(sums.isinf().all()) is overflows
    assert errors == ([("AMP504", "param[sums]")] if overflows and read else [])
    if overflows:  # one that is only shown harms nothing, and is not called fine
        assert report.verdict.word is not Health.SAFE


def test_numbers_that_are_set_to_infinity_are_no_sums():
    """As a beam sets what it does not go on with."""
    scores = torch.zeros(32, dtype=torch.float16)

    def mask(*_):
        scores.normal_().masked_fill_(torch.rand(32) > 0.5, float("-inf"))

    _, _, report = trained(mask, torch.float32, 300)
    assert not [one for one in report.findings if one.severity is Severity.ERROR]


def test_a_tensor_in_the_place_of_one_that_is_gone_was_not_there_before_training():
    averages = HalfAverages(WatchedThread(), WeakIdKeyDictionary())
    gone = torch.zeros(8, dtype=torch.bfloat16)
    for _ in range(20):
        gone.add_(1)
    place = id(gone)
    averages.begin()
    del gone
    made = [torch.zeros(8, dtype=torch.bfloat16) for _ in range(100)]
    there = [one for one in made if id(one) == place]
    assert there, "CPython gives a new object the place of the last one that went"
    for _ in range(4):
        there[0].add_(1)
    averages.step_ends(4)
    following = averages.following
    averages.end(4)
    assert following is not None
    assert there[0] in [state.tensor() for state in following.states]


def test_numbers_that_are_nan_and_stay_so_have_not_changed():
    """A NaN is no number's equal, its own neither: such a table was taken for one that changes in each step."""
    torch.manual_seed(0)
    model, table = nn.Linear(8, 1), torch.full((64,), float("nan")).half()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with ampcheck.watch(model, optimizer) as watching:
        for _ in range(24):
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(torch.randn(32, 8)).float() - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert table.isnan().all()
    assert watching.report().verdict.word is Health.SAFE
