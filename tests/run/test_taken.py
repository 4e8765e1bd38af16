"""What FP32 takes from a script's step: numbers that were rounded before it, and what it picks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from ampcheck.observe.reference.given import GIVEN
from ampcheck.observe.reference.picks import WORSE
from ampcheck.observe.statistics.units import unit_of
from ampcheck.run.session import Session
from ampcheck.values.doubts import DoubtKind
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
WANTED = ROWS.sum(1, keepdim=True)


def audit(model, loss_of, batches=10, precision=torch.float16):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=precision is torch.float16)
        for batch in batches if not isinstance(batches, int) else [ROWS] * batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", precision):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return session.report("script.py")


def net(inputs=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 1))


def fit(model, x):
    return F.mse_loss(model(x).float(), WANTED)


# -- numbers that were rounded before


def kept_at(offset):
    """Return a loss of a model whose input is kept in fp16 around a number, and centred when it is read."""
    kept = (ROWS + offset).half()
    return kept, lambda model, _: fit(model, kept.float() - offset)


def moved_by_hand(offset):
    """Return how far the gradient of the FP32 model moves where its input is moved by up to half a unit."""
    kept, _ = kept_at(offset)
    generator, grads = torch.Generator().manual_seed(7), []
    for part in (0.0, torch.rand(kept.shape, generator=generator) - 0.5):
        model = net()
        fit(model, kept.float() + part * unit_of(kept) - offset).backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return float((grads[1] - grads[0]).norm() / grads[0].norm())


@pytest.mark.parametrize("offset", [8000.0, 4.0])
def test_how_far_gradients_move_is_what_a_plain_run_says(offset):
    report = audit(net(), kept_at(offset)[1])
    (doubt,) = report.doubts
    expected = moved_by_hand(offset)
    assert doubt.kind is DoubtKind.GIVEN
    assert doubt.harms == (expected > 0.3) == (offset > 100)
    if not doubt.part:
        assert doubt.error == pytest.approx(expected, rel=0.5)


def test_numbers_whose_lost_bits_matter_are_an_error_at_their_line():
    report = audit(net(), kept_at(8000.0)[1])
    assert report.verdict.word is Health.UNSAFE
    (found,) = [one for one in report.findings if one.code == "AMP509"]
    assert found.message.startswith("kept was rounded before the step")
    with open(__file__, encoding="utf-8") as file:
        assert "kept.float() - offset" in file.readlines()[found.sites[0].line - 1]


def test_what_does_no_harm_here_stays_unknown_and_is_no_error():
    report = audit(net(), kept_at(4.0)[1])
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert GIVEN in report.verdict.sentence
    assert not [one for one in report.findings if one.code == "AMP509"]


def test_what_does_some_harm_here_may_do_more_in_another_step():
    assert 0.05 < moved_by_hand(1024.0) < 0.15
    report = audit(net(), kept_at(1024.0)[1])
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "by how much in other steps was not seen" in report.verdict.sentence
    assert not [one for one in report.findings if one.code == "AMP509"]


def test_numbers_on_a_grid_were_never_rounded():
    kept = torch.arange(64 * 8).view(64, 8).half() + 0.0
    report = audit(net(), lambda model, _: fit(model, (kept.float() - 255) / 256))
    assert not any(doubt.harms for doubt in report.doubts)


class Prices(Dataset):
    """Differences of neighbouring numbers that are kept in fp16."""

    def __init__(self, offset):
        self.kept = (ROWS.flatten() + offset).half()

    def __len__(self):
        return 200

    def __getitem__(self, at):
        window = self.kept[at : at + 9].float()
        return window[1:] - window[0]


@pytest.mark.parametrize(("offset", "harmed"), [(8000.0, True), (0.0, False)])
def test_a_data_set_that_casts_its_numbers_up_is_looked_into(offset, harmed):
    loader = DataLoader(Prices(offset), batch_size=20)
    report = audit(net(), lambda model, x: F.mse_loss(model(x).float(), x.sum(1, keepdim=True)), loader)
    assert (report.verdict.word is Health.UNSAFE) is harmed
    assert any(one.code == "AMP509" for one in report.findings) is harmed


# -- what is picked


class Codes(nn.Module):
    """Replaces a vector by the nearest of some codes; distances come from products, which fp16 rounds."""

    def __init__(self, far, dtype):
        super().__init__()
        torch.manual_seed(1)
        self.codes, self.far, self.dtype = nn.Parameter(torch.randn(32, 8)), far, dtype

    def pick(self, x):
        at, codes = (x + self.far).to(self.dtype), (self.codes + self.far).to(self.dtype)
        distances = (at * at).sum(1, keepdim=True) - 2 * at @ codes.t() + (codes * codes).sum(1)
        return distances.argmin(1)

    def forward(self, x):
        return self.codes[self.pick(x)]


def quantize(model, x):
    return F.mse_loss(model(x).float(), x)


def picked_otherwise(far):
    """Return how far the codes' gradient is off where fp16 has picked."""
    grads = []
    for dtype in (torch.float32, torch.float16):
        model = Codes(far, dtype)
        quantize(model, ROWS).backward()
        grads.append(model.codes.grad)
    return float((grads[1] - grads[0]).norm() / grads[0].norm())


def test_picks_that_change_the_gradients_are_an_error_at_their_line():
    assert picked_otherwise(20.0) > 0.5
    report = audit(Codes(20.0, torch.float16), quantize)
    assert report.verdict.word is Health.UNSAFE
    (found,) = [one for one in report.findings if one.code == "AMP510"]
    assert found.message.startswith("argmin picks otherwise than FP32 would")
    with open(__file__, encoding="utf-8") as file:
        assert "distances.argmin(1)" in file.readlines()[found.sites[0].line - 1]
    (doubt,) = report.doubts
    assert doubt.kind is DoubtKind.PICKED
    assert doubt.error == pytest.approx(picked_otherwise(20.0), rel=0.5)


class Logged(Codes):
    """Picks for a log; what is trained does not depend on it."""

    def forward(self, x):
        self.last = self.pick(x)
        return x + self.codes[0]


def test_picks_that_change_no_gradient_are_safe():
    report = audit(Logged(20.0, torch.float16), quantize)
    assert not any(doubt.harms for doubt in report.doubts)
    assert not any(what.endswith(WORSE) for what in report.verdict.coverage.gaps)
    assert not [one for one in report.findings if one.code == "AMP510"]


class Gate(nn.Module):
    """Lets rows through by a comparison of numbers that fp16 cannot tell apart, or can."""

    def __init__(self, far):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.far = nn.Linear(8, 1), far

    def forward(self, x):
        at = (x[:, :1] + self.far).half()
        open_ = at > (x[:, 1:2] + self.far).half()
        return self.layer(x) * open_


@pytest.mark.parametrize(("far", "harmed"), [(2000.0, True), (0.0, False)])
def test_comparisons_that_come_out_otherwise_are_picks_too(far, harmed):
    grads = []
    for gate in (Gate(0.0), Gate(far)):
        fit(gate, ROWS).backward()
        grads.append(gate.layer.weight.grad)
    assert bool((grads[1] - grads[0]).norm() > 0.3 * grads[0].norm()) is harmed
    report = audit(Gate(far), fit)
    assert [one.code for one in report.findings if one.code == "AMP510"] == ["AMP510"] * harmed
    assert (report.verdict.word is Health.UNSAFE) is harmed


class Drawn(nn.Module):
    """Reads rows of a table by where draws fall in a cumulative sum, which fp16 or FP32 holds."""

    def __init__(self, dtype, size):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.dtype = nn.Parameter(torch.randn(size, 8)), dtype

    def forward(self, x):
        ends = torch.full((len(self.rows),), 1 / len(self.rows)).to(self.dtype).cumsum(0)
        draws = ((x[:, 0].sin() + 1) / 2).to(self.dtype)
        return self.rows[torch.searchsorted(ends, draws).clamp_(max=len(self.rows) - 1)]


@pytest.mark.parametrize(("size", "harmed"), [(4000, True), (4, False)])
def test_places_in_a_table_that_half_precision_cannot_tell_apart_are_picks_too(size, harmed):
    grads = []
    for dtype in (torch.float32, torch.float16):
        model = Drawn(dtype, size)
        quantize(model, ROWS).backward()
        grads.append(model.rows.grad)
    assert bool((grads[1] - grads[0]).norm() > 0.5 * grads[0].norm()) is harmed
    report = audit(Drawn(torch.float16, size), quantize)
    found = [one for one in report.findings if one.code == "AMP510"]
    assert bool(found) is harmed
    assert all("searchsorted picks otherwise" in one.message for one in found)


# -- ids that were kept in half precision


def by_id(first, step):
    """Return ids, those that fp16 makes of them, and a loss of a table that is read by the latter."""
    ids = torch.arange(first, first + 512 * step, step)
    ids = torch.cat([ids[:256], ids[-256:]])
    kept = torch.stack([ids.float(), torch.linspace(0, 1, 512)], 1).half()

    def loss_of(model, _):
        rows = kept[torch.arange(512)]
        return (model(rows[:, 0].long()) * torch.sin(rows[:, 1:].float() * 40)).square().mean()

    return ids, kept[:, 0].long(), loss_of


@pytest.mark.parametrize(("first", "step", "rounded"), [(1024, 3, True), (0, 1, False), (0, 8, False)])
def test_ids_that_were_kept_in_half_precision_are_an_error_where_it_holds_not_all(first, step, rounded):
    ids, read, loss_of = by_id(first, step)
    assert (not torch.equal(ids, read)) is rounded
    torch.manual_seed(0)
    report = audit(nn.Embedding(8192, 4), loss_of)
    errors = [one for one in report.findings if one.code == "AMP509"]
    assert bool(errors) is rounded
    assert (report.verdict.word is Health.UNSAFE) is rounded
    if rounded:
        assert errors[0].sites[0].line == loss_of.__code__.co_firstlineno + 2


def test_an_index_that_only_fp32_has_beyond_a_table_is_not_looked_up():
    """On a GPU it would end the program."""
    table, place = nn.Embedding(10, 4), torch.linspace(0, 9.992, 64).half()

    def loss_of(model, _):
        low = wide = place
        for _ in range(3):  # in fp16 the last one stays where it is
            low, wide = low * 1.0003, wide.float() * 1.0003
        assert [int(one.max()) for one in (low, wide)] == [9, 10]
        return model(low.long()).float().square().mean()

    report = audit(table, loss_of)
    assert not any("embedding" in what for what in report.low.not_audited)
