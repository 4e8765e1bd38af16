"""What is read once a step: statistics from records, gradients beside FP32's, errors by site."""

import math
import random

import pytest
import torch
from builders import pair_error
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.fix import verify
from ampcheck.fix.verify import MATTERS, comparison
from ampcheck.observe.native import NATIVE
from ampcheck.observe.reference.pair import pair_errors
from ampcheck.observe.statistics import step_record as records
from ampcheck.observe.statistics.measure import Arena
from ampcheck.observe.statistics.step_record import Fetched, StepRecord
from ampcheck.values.trace import Phase, Site

built = pytest.mark.skipif(NATIVE is None, reason="the extension was not built: no compiler at install time")
#: What a gradient may hold, the edges of FP32 and of fp16 among it.
HELD = [0.0, -0.0, 1.0, -3.0, 1e-45, 6e-8, 65504.0, 1e20, -3e38, math.inf, -math.inf, math.nan]
VALUES = st.sampled_from(HELD) | st.floats(width=32, allow_nan=False, allow_infinity=False)


@built
def test_statistics_are_the_same_from_c_and_from_python(monkeypatch):
    arena = Arena()
    rows = [arena.row() for _ in range(40)]
    for row in rows[:-1]:  # nothing is added to the last
        values = torch.randn(3 * row) * 2.0 ** random.Random(row).randint(-140, 120)
        values[::7] = 0.0
        arena.add(row, values)
        arena.add(row, torch.tensor([math.inf, math.nan, -1e-45]))
    table = arena.read()
    found = list(records.statistics(table))
    assert [held is None for held in found] == [False] * 39 + [True]
    assert list(records.statistics(table.t().contiguous().t())) == found
    monkeypatch.setattr(records, "NATIVE", None)
    assert list(records.statistics(table)) == found


def by_definition(before, scaled, unscale):
    """Return what `comparison` says, element by element."""
    pairs = [(b, s) for b, s in zip(before, scaled, strict=True) if math.isfinite(b)]
    bad = sum(not math.isfinite(s) for _, s in pairs)
    after = [(b, s * unscale if math.isfinite(s) else 0.0) for b, s in pairs]
    norm = math.fsum(b * b for b, _ in after)
    least = MATTERS * math.sqrt(norm / len(before))
    matter = [s for b, s in pairs if b and abs(b) >= least]
    lost = sum(s == 0 for s in matter)
    return math.fsum((a - b) ** 2 for b, a in after), norm, bad, lost, len(matter)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=built), False])
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40), st.sampled_from([0, 8, 16, -3]))
def test_gradients_are_compared_by_definition(compiled, pairs, log2_scale):
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(verify, "NATIVE", None)
        before, scaled = (torch.tensor(column) for column in zip(*pairs, strict=True))
        error, norm, *counts = comparison(before, scaled, log2_scale).tolist()
    wanted_error, wanted_norm, *wanted = by_definition(before.tolist(), scaled.tolist(), 2.0**-log2_scale)
    assert norm == pytest.approx(wanted_norm, rel=1e-12)
    # A difference is rounded to FP32 once before it is squared, where it may leave FP32's range.
    assert error == pytest.approx(wanted_error, rel=1e-6, abs=1e-70) or wanted_error > (3.4e38) ** 2
    edge = MATTERS * math.sqrt(norm / len(pairs))
    on_edge = any(b and abs(b) == pytest.approx(edge, rel=1e-6) for b in before.tolist())
    assert counts == wanted or on_edge


@built
def test_only_memory_as_it_is_goes_to_c(monkeypatch):
    """A lazy minus is a bit beside the memory; shapes that broadcast are no two gradients of one parameter."""
    lazy = torch.complex(torch.zeros(3), torch.tensor([1.0, -2.0, 0.0])).conj().imag
    assert lazy.is_neg()
    cases = [(lazy.clone().resolve_neg(), lazy), (lazy, lazy), (torch.ones(3), torch.ones(1))]
    found = [comparison(*case, 0).tolist() for case in cases]
    monkeypatch.setattr(verify, "NATIVE", None)
    assert found == [comparison(*case, 0).tolist() for case in cases]
    assert found[0] == pytest.approx([0.0, 5.0, 0.0, 0.0, 2.0])


@built
def test_an_address_too_few_is_refused():
    with pytest.raises(TypeError, match="expected 5 arguments, got 2"):
        NATIVE.compare(0, 0)
    with pytest.raises(TypeError, match="expected 3 integers, got 1"):
        NATIVE.stats(0)


def test_errors_by_site_are_the_sums_over_its_calls():
    generator = torch.Generator().manual_seed(0)
    sites = [Site("net", f"op{n}", "output", Phase.FORWARD, "float16", "net.py", n) for n in range(6)]
    low, wide = {}, {}
    for n, site in enumerate(sites):
        calls = [
            torch.randn(length, generator=generator, dtype=torch.float64)
            for length in (128, 3, 1, 128)[: n + 1]
        ]
        calls[0][::5] = 0.0
        calls[0][1] = math.nan
        wide[site._replace(dtype="float32")] = calls
        low[site] = [call.half().double() for call in calls]
        low[site][0][2:4] = torch.tensor([0.0, math.inf])
    found = pair_errors(Fetched({}, wide, {}, []), Fetched({}, low, {}, []), 0)
    assert list(found) == sites
    for site, error in found.items():
        flat = [torch.cat(held).tolist() for held in (wide[site._replace(dtype="float32")], low[site])]
        wanted = pair_error(*flat)
        for name in error.__dataclass_fields__:
            assert getattr(error, name) == pytest.approx(getattr(wanted, name), rel=1e-12), name


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=built), False])
def test_tensors_that_exist_all_at_once_are_measured_as_one_by_one(compiled):
    tensors = [torch.randn(5, 7).t(), torch.zeros(3), torch.randn(4, dtype=torch.float16), torch.ones(2, 2)]
    keys = [("net", "", f"param[{n}]", Phase.STATE, "float32", "", 0) for n in (0, 1, 2, 0)]
    step_records = StepRecord(8), StepRecord(8)
    for step_record in step_records:
        if not compiled:
            step_record._shelf(torch.device("cpu")).arena = Arena(kernel="torch")
    numbers = [[step_record.number(key) for key in keys] for step_record in step_records]
    step_records[0].add_all(numbers[0], tensors)
    for number, tensor in zip(numbers[1], tensors, strict=True):
        step_records[1].add(number, tensor)
    one, other = (step_record.fetch() for step_record in step_records)
    assert one.sites == other.sites
    assert [stats.numel for stats in one.sites.values()] == [39, 3, 4]
    assert step_records[0].measured == step_records[1].measured == 4
    for site, held in other.samples.items():
        assert list(map(torch.equal, one.samples[site], held)) == [True] * len(held)
