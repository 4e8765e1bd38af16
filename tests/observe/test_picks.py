"""Elements that a step picks: a pick among equals is as good as FP32's, one among rounded numbers may not be."""

import pytest
import torch
from torch import nn

from ampcheck.observe.reference.picks import WORSE, Picks
from ampcheck.run.session import Session
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Codes(nn.Module):
    """Looks up the nearest code; far from zero, products in half precision cannot tell codes apart."""

    def __init__(self, far):
        super().__init__()
        self.codes = nn.Parameter(far + 0.3 * torch.randn(32, 16))
        self.enter = nn.Linear(16, 16)
        nn.init.eye_(self.enter.weight)

    def forward(self, x):
        z = self.enter(x)
        squares = z.pow(2).sum(1, keepdim=True) + self.codes.pow(2).sum(1)
        near = self.codes[(squares - 2 * z @ self.codes.t()).argmin(1)]
        return (near - z.detach()).float().square().mean() + (z - near.detach()).float().square().mean()


def trained(far, dtype):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Codes(far)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(6):
            x = model.codes.detach()[torch.randint(32, (128,))] + 0.1 * torch.randn(128, 16)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                loss = model(x)
            loss.backward()
            optimizer.step()
    return session.report("script.py")


def test_picks_among_rounded_distances_are_named_and_not_safe():
    report = trained(12.0, torch.bfloat16)
    assert report.verdict.word is not Health.SAFE
    named = [what for what in report.not_audited if what.endswith(WORSE)]
    assert len(named) == 1
    assert named[0].startswith("argmin at ")
    assert "test_picks.py" in named[0]


def test_picks_that_are_as_good_as_those_of_fp32_are_no_matter():
    report = trained(0.0, torch.bfloat16)
    assert not any(what.endswith(WORSE) for what in report.not_audited)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


def one(name, values, other, **options):
    """Return how much worse the picks of some numbers are by other numbers, and how far FP32's are from the average."""
    picks, op = Picks(), getattr(torch, name)
    picks.note(
        name, (values, *options.values()), {}, op(other, *options.values()), op(values, *options.values())
    )
    ((worse, apart, *_),) = (found.tolist() for found in picks._found.values())
    return worse, apart


@pytest.mark.parametrize("dim", [0, 1])
def test_how_much_worse_a_pick_is_by_hand(dim):
    values = torch.tensor([[1.0, 4.0, 2.0], [0.0, 8.0, 7.0]])
    other = torch.tensor([[1.0, 2.0, 3.0], [9.0, 5.0, 6.0]])
    lines = values if dim else values.t()
    rows, picked = lines.tolist(), (other if dim else other.t()).argmax(1).tolist()
    worse = sum(max(row) - row[at] for row, at in zip(rows, picked, strict=True))
    apart = sum(max(row) - sum(row) / len(row) for row in rows)
    assert one("argmax", values, other, dim=dim) == pytest.approx((worse, apart))


def test_several_picks_count_by_their_sum_and_ties_for_nothing():
    values, other = torch.tensor([[5.0, 4.0, 3.0, 0.0]]), torch.tensor([[1.0, 4.0, 3.0, 2.0]])
    assert one("topk", values, other, k=2) == pytest.approx((9 - 7, 9 - 2 * 3))
    equal = torch.tensor([[2.0, 2.0, 0.0]])
    assert one("argmax", equal, torch.tensor([[0.0, 1.0, 0.0]]), dim=1)[0] == 0.0


class Table(nn.Module):
    """Reads the row whose number stands in its input, as a float."""

    def __init__(self):
        super().__init__()
        self.enter, self.rows = nn.Linear(1, 1, bias=False), nn.Embedding(4096, 4)
        nn.init.ones_(self.enter.weight)

    def forward(self, x):
        at = self.enter(x)
        return self.rows(at.detach().squeeze(1).long()).sum(1) * at.squeeze(1)


@pytest.mark.parametrize(
    ("largest", "wrong"), [(2048, False), (4095, True)]
)  # fp16 holds integers up to 2,048
@pytest.mark.parametrize("apart", [0.0, 0.25])
def test_a_row_number_that_half_precision_cannot_hold_is_an_error_where_it_is_whole(largest, wrong, apart):
    torch.manual_seed(0)
    assert (torch.arange(largest).half().long() != torch.arange(largest)).any() == wrong
    session, shares = Session(Schedule(), as_cuda=True), []
    with session.watching():
        model = Table()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
        for _ in range(4):
            x = torch.randint(largest // 2, largest, (128, 1)).float() + apart
            shares.append(float((x.half().long() != x.long()).double().mean()))
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean() * 1e-6
            loss.backward()
            optimizer.step()
    report = session.report("script.py")
    missed = [what for what in report.not_audited if what.endswith(WORSE)]
    found = [one for one in report.findings if one.code == "AMP508"]
    assert len(missed) == (wrong and apart > 0)
    assert all("integers at" in what and "test_picks.py" in what for what in missed)
    assert len(found) == (wrong and apart == 0)
    assert all(one.sites[0].line == Table.forward.__code__.co_firstlineno + 2 for one in found)
    assert all(one.numbers["share"] in shares for one in found)


@pytest.mark.parametrize("share", [0.01, 0.012, 0.1, 0.5])
@pytest.mark.parametrize("lowest", [2049, 10_000])  # from 2,048 on fp16 has no odd ones
def test_wrong_rows_move_the_gradient_of_a_table_by_the_root_of_twice_their_share(share, lowest):
    number, small = int(share * 1000), torch.arange(1000)
    ids = torch.arange(lowest, lowest + 32 * number, 32) + (0 if lowest % 2 else 1)
    right = torch.cat([ids, small[number:]])
    low = right.half().long()
    assert int((low != right).sum()) == number
    rows = nn.Embedding(lowest + 40 * 1000, 1)
    full, off = (torch.autograd.grad(rows(at).sum(), rows.weight)[0] for at in (right, low))
    error = float((off - full).norm() / full.norm())
    assert error == pytest.approx((2 * share) ** 0.5)
    picks = Picks()
    picks.note("_to_copy", (right.float(),), {}, low, right)
    missed, found = picks.fetch({})
    assert not missed
    assert bool(found) is (error > HARM_ERROR)


def test_neighbouring_bins_are_no_wrong_integers():
    torch.manual_seed(0)
    values = torch.rand(4096) * 64
    bins = [torch.floor(kind) for kind in (values, values.bfloat16().float())]
    assert 0.01 < float((bins[0] != bins[1]).double().mean()) < HARM_ERROR
    picks = Picks()
    picks.note("_to_copy", (bins[0],), {}, bins[1].long(), bins[0].long())
    assert picks.fetch({}) == ((), ())
