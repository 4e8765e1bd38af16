"""Of several errors with one cause, the first one names that cause, and all that is to be changed."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.outcome import HARM_UNDERFLOW
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def watched(loop):
    """Run a loop; return its report and the errors in that."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    report = session.report("script.py")
    return report, [one for one in report.findings if one.severity is Severity.ERROR]


def rows(n=64):
    return torch.randn(n, 8)


# -- a scale of the script's own


def by_hand(scale, steps=12):
    """Train on a tiny loss that one number multiplies."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-16)
    for _ in range(steps):
        x = rows()
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(1e-5 * model(x), 1e-5 * x)
        optimizer.zero_grad()
        (loss * scale).backward()
        torch._foreach_div_([one.grad for one in model.parameters()], scale)
        optimizer.step()


@pytest.mark.parametrize(("scale", "small"), [(2.0**9, True), (2.0**26, False)])
def test_a_number_that_multiplies_too_little_is_named_where_it_multiplies(scale, small):
    _, errors = watched(lambda: by_hand(scale))
    assert [one.code for one in errors] == (["AMP201"] if small else [])
    for first in errors:
        assert first.origin.line == line_of(by_hand, "(loss * scale)")
        assert first.fix[0].endswith("here and where the gradients are divided by it")
        assert "init_scale" not in first.message


def with_masters(scale, steps=8):
    """Step FP32 copies of float16 weights, by gradients that are divided in float16."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    masters = [one.detach().clone().requires_grad_() for one in model.parameters()]
    model.half()
    optimizer = torch.optim.Adam(masters, 1e-3, eps=1e-14)
    for _ in range(steps):
        x = rows()
        loss = 3e-7 * F.mse_loss(model(x.half()).float(), x)
        model.zero_grad()
        (loss * scale).backward()
        for master, weight in zip(masters, model.parameters(), strict=True):
            master.grad = (weight.grad / scale).float()
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, model.parameters(), strict=True):
                weight.copy_(master)


def test_of_a_scale_that_is_not_known_no_other_one_is_advised():
    report, errors = watched(lambda: with_masters(2.0**20))
    assert report.loop.scaling
    assert [one.code for one in errors] == ["AMP421", "AMP201"]
    assert [one[:6] for one in errors[0].follows] == ["AMP103"]
    assert errors[0].origin.line == line_of(with_masters, "weight.grad / scale")
    assert not [one.message for one in errors if "without a loss scale" in one.message]
    assert not [fix for one in errors for fix in one.fix if "init_scale" in fix]


# -- no scale at all


def without_scale(size, steps=12):
    """Learn a table: each number of it has the gradient of one logit."""
    model = nn.Linear(40, 40)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    wanted = torch.randn(40, 40)
    for _ in range(steps):
        with torch.autocast("cuda", torch.float16):
            loss = size * (model(torch.eye(40)).float() - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(("size", "lost"), [(6e-5, True), (1.0, False)])
def test_gradients_of_which_some_are_too_small_ask_for_a_scaler_before_a_larger_scale(size, lost):
    report, errors = watched(lambda: without_scale(size))
    assert (HARM_UNDERFLOW < report.outcomes["settled"].underflow < 0.5) is lost
    assert [one.code for one in errors[:1]] == (["AMP408"] if lost else [])
    for first in errors[:1]:
        assert first.origin.line == line_of(without_scale, "loss.backward()")
        assert first.fix[0].startswith("scaler = torch.amp.GradScaler")


# -- a region that lasts over the steps


def lasting(*, cached):
    """Fit offsets of a large sum in one region; the gradient is off by rounding as well."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        model(rows())
    for _ in range(8):
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=cached):
            for _ in range(8):
                x = rows()
                loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


@pytest.mark.parametrize("cached", [True, False])
def test_a_region_that_lasts_comes_before_what_it_makes_wrong(cached):
    _, errors = watched(lambda: lasting(cached=cached))
    assert [one.code for one in errors[:1]] == (["AMP419"] if cached else [])
    for first in errors[:1]:
        assert first.origin.line == line_of(lasting, "dtype=torch.bfloat16")
        assert first.fix[0].startswith(
            'with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):'
        )


# -- two counts, of which a model reads the quotient


class Counts(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("views", torch.zeros(4, dtype=dtype))
        self.register_buffer("clicks", torch.zeros(4, dtype=dtype))

    def forward(self, key):
        views, clicks = self.views[key].float(), self.clicks[key].float()
        return torch.logit(((clicks + 4) / (views + 20)).clamp(1e-3, 1 - 1e-3))

    @torch.no_grad()
    def update(self, key, click):
        self.views.index_add_(0, key, torch.ones_like(click).to(self.views.dtype))
        self.clicks.index_add_(0, key, click.to(self.clicks.dtype))


def counted(dtype):
    counts, head = Counts(dtype), nn.Linear(9, 1)
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    for _ in range(60):
        x, key = rows(128), torch.randint(4, (128,))
        click = (torch.rand(128) < torch.tensor([0.1, 0.3, 0.6, 0.9])[key]).float()
        with torch.autocast("cuda", torch.bfloat16):
            out = head(torch.cat([x, counts(key)[:, None]], 1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(out.float(), click)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counts.update(key, click)
    return counts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_all_states_of_a_module_are_named_at_the_first_one_that_is_lost(dtype):
    found = []
    _, errors = watched(lambda: found.append(counted(dtype)))
    lost = dtype is torch.bfloat16
    assert (float(found[0].views.sum()) < 0.5 * 60 * 128) is lost
    assert ([one.code for one in errors[:1]] == ["AMP504"]) is lost
    if not lost:
        assert not errors
        return
    made = [line_of(Counts.__init__, f'"{name}"') for name in ("views", "clicks")]
    assert errors[0].origin.line == line_of(Counts.update.__wrapped__, "self.views.index_add_")
    assert [fix.partition(",")[0].rpartition(":")[2] for fix in errors[0].fix] == [str(line) for line in made]


# -- what hooks keep for the backward

HALF = torch.finfo(torch.float16)


def pack(tensor):
    return tensor.dtype, tensor.clamp(HALF.min, HALF.max).half() if tensor.numel() > 256 else tensor


def powers(size, steps=12):
    """Learn filters of power spectra, of which the hooks keep what float16 holds."""
    filters, head = nn.Linear(40, 4, bias=False), nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*filters.parameters(), *head.parameters()], 1e-2)
    scaler = torch.amp.GradScaler("cuda", 2.0**10)
    for _ in range(steps):
        power = size * torch.rand(64, 40)
        kind = (power[:, 0] > power[:, 1]).long()
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1].to(kept[0]))
        with hooks, torch.autocast("cuda", torch.float16):
            with torch.autocast("cuda", enabled=False):
                energy = power @ filters.weight.softmax(1).t()
            loss = F.cross_entropy(head((energy + 1e-3).log()).float(), kind)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize(("size", "cut"), [(1e7, True), (1e3, False)])
def test_what_is_kept_in_fp32_and_cut_off_at_a_limit_of_fp16_is_off_there(size, cut):
    report, errors = watched(lambda: powers(size))
    assert (report.verdict.word is Health.UNSAFE) is cut
    assert [one.origin.line for one in errors[:1]] == ([line_of(pack, "clamp")] if cut else [])
