"""Sampled statistics: equal totals, the same places in every run, and the bound that the report prints holds."""

import math

import pytest
import torch
from torch import nn

from ampcheck.observe.recorder import Recorder
from ampcheck.observe.statistics.measure import NATIVE, Arena
from ampcheck.observe.statistics.sampling import add_sampled, sampled_places, share_bound, words
from ampcheck.observe.statistics.step_record import StepRecord, records_of, stats_of
from ampcheck.renderers import RENDERERS
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Phase

CPU = torch.device("cpu")
KERNELS = ["torch", *(["native"] if NATIVE else [])]


def sampled(tensor, k, kernel="auto"):
    arena = Arena(kernel=kernel)
    add_sampled(arena, arena.row(), tensor, k)
    return next(records_of(arena.read()[:1]))


def exact(tensor):
    arena = Arena()
    arena.add(arena.row(), tensor)
    return next(records_of(arena.read()[:1]))


def striped(n):
    """Every 64th column is zero and every 96th element large: what equal steps would meet always or never."""
    values = torch.randn(n)
    values[::64] = 0.0
    values[::96] = 1e4
    return values


DISTRIBUTIONS = {
    "normal": torch.randn,
    "lognormal": lambda n: torch.exp(6 * torch.randn(n)),
    "uniform": torch.rand,
    "cauchy": lambda n: torch.randn(n) / torch.randn(n),
    "tiny gradients": lambda n: torch.randn(n) * 2.0 ** -torch.randint(10, 40, (n,)),
    "relu": lambda n: torch.randn(n).relu(),
    "rare": lambda n: torch.randn(n) * (torch.rand(n) < 0.01),
    "sorted": lambda n: torch.sort(torch.exp(6 * torch.randn(n))).values,
    "striped": striped,
    "blocks": lambda n: torch.randn(n) * 2.0 ** (torch.arange(n) // 997 % 30 - 25),
    "two values": lambda n: torch.where(torch.rand(n) < 0.5, 1.0, 2.0**-20),
}
SHAPES = [(1_001, 1_000), (2_500, 1_000), (100_000, 1_000), (262_144, 4_096), (300_007, 257)]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_bound_holds_for_every_share_below_a_power_of_two(name):
    torch.manual_seed(0)
    off, shares = 0, 0
    for n, k in SHAPES:
        for _ in range(8):
            tensor = DISTRIBUTIONS[name](n)
            found, truth = torch.tensor(sampled(tensor, k)[:259]), torch.tensor(exact(tensor)[:259])
            assert found.sum() == n == truth.sum()
            # Zeros first, then the exponents: the shares that a flush to zero at any scale would take.
            order = torch.tensor([256, *range(256), 257, 258])
            error = (found[order].cumsum(0) - truth[order].cumsum(0)).abs() / n
            moving = (truth[order].cumsum(0) > 0) & (truth[order].cumsum(0) < n)
            off += int((error[moving] > share_bound(k)).sum())
            shares += int(moving.sum())
    assert shares >= 40
    assert off <= 0.05 * shares


def test_unequal_parts_cost_what_the_bound_allows_for():
    def spread(n, k):
        sizes = [(i + 1) * n // k - i * n // k for i in range(k)]
        return k * sum((size / n) ** 2 for size in sizes if size > 1)

    worst = max(spread(n, k) for k in (7, 64, 100) for n in range(k, 6 * k))
    assert 1.03 < worst <= 25 / 24 + 1e-12
    assert share_bound(64) == pytest.approx(math.sqrt(25 / 24 * math.log(40) / 128))


@pytest.mark.parametrize(("n", "k"), [*SHAPES, (7, 3), (10**9, 1_000)])
def test_one_place_in_each_part_and_a_part_counts_its_elements(n, k):
    groups = sampled_places(n, k, CPU)
    places = sorted((place, size) for group, size in groups for place in group.tolist())
    edges = [i * n // k for i in range(k + 1)]
    assert len(places) == k
    assert sum(size for _, size in places) == n
    for (place, size), low, high in zip(places, edges, edges[1:], strict=False):
        assert low <= place < high
        assert size == high - low


def test_places_in_their_parts_are_spread_evenly():
    k, size = 10_000, 1_000
    ((places, _),) = sampled_places(k * size, k, CPU)
    within = torch.sort(places % size).values.double() / size
    distance = (within - torch.arange(k) / k).abs().max()
    assert distance < 1.63 / math.sqrt(k)  # Kolmogorov's limit at 1 %


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64]
)
def test_what_is_counted_is_what_stands_at_the_places(kernel, dtype):
    torch.manual_seed(0)
    tensor = torch.randn(30, 41, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    flat = torch.view_as_real(tensor).reshape(-1) if dtype.is_complex else tensor.reshape(-1)
    total, largest, squares = 0, 0.0, 0.0
    bins = [0] * 256
    for places, size in sampled_places(flat.numel(), 100, CPU):
        wide = flat if flat.dtype is torch.float64 else flat.float()
        for value in wide[places].tolist():
            total += size
            largest, squares = max(largest, abs(value)), squares + size * value * value
            if value:
                bins[math.frexp(abs(value))[1] - 1 + 127] += size
    found = sampled(tensor, 100, kernel)
    stats = stats_of(found)
    assert found[:256].tolist() == bins
    assert stats.numel == total == flat.numel()
    assert stats.amax == largest
    assert stats.sum_squares == pytest.approx(squares, rel=1e-6)
    assert found[-1] == 1  # a call


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[:, :1].expand(300, 400),
        lambda t: t.view(3, 10, 100, 40).to(memory_format=torch.channels_last),
        lambda t: t[0, 0].expand(5000),
    ],
    ids=["transposed", "with gaps", "expanded", "channels last", "one element"],
)
def test_any_layout_keeps_its_total(view):
    tensor = view(torch.randn(300, 400))
    found = stats_of(sampled(tensor, 1_000))
    assert found.numel == tensor.numel()
    assert found.amax <= tensor.abs().max().item()


def test_tensors_no_larger_are_exact_and_so_are_parameters():
    torch.manual_seed(0)
    for n in (0, 1, 99, 100):
        tensor = torch.randn(n)
        assert sampled(tensor, 100) == exact(tensor)
    large = torch.randn(5_000)
    large[1_234] = torch.inf
    step_record = StepRecord(most=100)
    for phase in (Phase.STATE, Phase.BACKWARD):
        step_record.add(step_record.number(("", "", "param_grad[w]", phase, "float32", "", 0)), large)
    state, other = (stats for stats in step_record.fetch().sites.values())
    assert state.infs == 1
    assert state == stats_of(exact(large))
    assert other.numel == 5_000
    assert other != state


def test_it_is_the_same_every_time_and_draws_no_random_number():
    tensor = torch.randn(50_000)
    before = torch.random.get_rng_state()
    first = sampled(tensor, 333)
    sampled_places.cache_clear()
    assert sampled(tensor, 333) == first
    assert torch.equal(torch.random.get_rng_state(), before)


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.LayerNorm(64))
    batch = torch.randn(128, 64)
    return Target("net", model, [batch], lambda m, x: m(x).square().mean())


@pytest.mark.parametrize("layers_only", [False, True])
def test_an_audit_has_the_same_elements_and_shares_within_the_bound(layers_only):
    whole = audit(net(), Settings(verify=False, layers_only=layers_only))
    part = audit(net(), Settings(verify=False, layers_only=layers_only, sample=1_000))
    assert list(part.low.sites) == list(whole.low.sites)
    assert part.low.casts == whole.low.casts
    assert part.low.steps[0].nonfinite == whole.low.steps[0].nonfinite
    changed = off = 0
    for site, stats in whole.low.sites.items():
        found = part.low.sites[site]
        assert found.numel == stats.numel
        if site.phase is Phase.STATE or stats.numel <= 1_000:
            assert found == stats
            continue
        changed += found != stats
        off += abs(found.zeros - stats.zeros) > share_bound(1_000) * stats.numel
    assert changed > 5
    assert off == 0


def test_the_step_is_bit_identical():
    grads = []
    for most in (0, 50):
        target = net()
        with Recorder(target.model, most=most):
            target.loss(target.model, target.batch(0)).backward()
        grads.append([parameter.grad for parameter in target.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_every_format_that_prints_notes_says_it_is_sampled():
    report = audit(net(), Settings(verify=False, sample=1_000))
    text = words(1_000)
    assert f"{share_bound(1_000):.1%}"[:-1] in text
    assert "may be missed" in text
    assert text in from_json(to_json(report)).notes
    for name in ("terminal", "markdown", "html"):
        flat = " ".join(RENDERERS[name](report).split())
        assert "sampled: of a result with more than 1,000 elements 1,000 were read" in flat, name
    assert report.environment["sampled"] == "1000 elements a tensor"


def test_the_command_line_takes_it(capsys):
    from ampcheck.cli import main

    assert main(["torchvision:resnet18", "--small", "--sample", "4096", "--no-verify"]) == 0
    assert "off by at most 2.2 %" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="2"):
        main(["torchvision:resnet18", "--sample", "0"])
