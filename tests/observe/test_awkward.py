"""Awkward but legal models finish the audit, are left as they were, and what was not audited is said."""

from collections import Counter
from typing import Any

import pytest
import torch
from awkward_runs import CASES, REPORTS, bits_of, recorded, report, same
from torch import nn
from witness import COPIES, bits, installed, left_behind, model_bits, random_bits, seed

from ampcheck.observe.cuda_on_cpu.wide import WideCompute, execute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import casting_rules
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings

EVERY = pytest.mark.parametrize("name", CASES)
#: Another dtype takes the same way through a model, with other casts: every third model is enough of it.
THIRD = list(CASES)[::3]


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp16") for name in CASES), *((name, "bf16") for name in THIRD)]
)
def test_the_audit_finishes_and_leaves_everything_as_it_was(name, precision):
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    seed()
    before = bits_of(model, batch), random_bits(), installed()
    found = audit(
        Target(name, model, [batch], loss),
        Settings(precision=precision, log2_scale=4 if precision == "fp16" else 0),
    )
    REPORTS.setdefault((name, precision), found)
    assert found.low.failure is None
    assert found.low.sites
    assert found.errors
    assert found.low.steps[0].loss == pytest.approx(found.reference.steps[0].loss, rel=0.1, abs=0.05)
    after = bits_of(model, batch), random_bits(), installed()
    assert after[:2] == before[:2]
    assert left_behind(before[2], after[2]) == []


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float16) for name in CASES), *((name, None) for name in THIRD)]
)
def test_every_operation_and_cast_counts_as_brute_force_counts_it(name, dtype):
    trace, witness = recorded(name, dtype)
    mine = trace.by(lambda site: (site.op, site.dtype) if site.op and site.op not in COPIES else None)
    assert trace.operations == witness.seen.ops
    theirs = witness.seen.results
    assert set(mine) == {key for key, counts in theirs.items() if counts.numel or key in mine}
    wrong = {key: (mine[key], theirs[key]) for key in mine if not same(mine[key], theirs[key])}
    assert not wrong
    assert_casts_are_those_an_independent_mode_sees(trace, witness)


def assert_casts_are_those_an_independent_mode_sees(trace, witness):
    theirs: Counter[Any] = Counter()
    volume: Counter[Any] = Counter()
    for source, target, size in witness.seen.casts:
        theirs[str(source)[6:], str(target)[6:]] += 1
        volume[str(source)[6:], str(target)[6:]] += size
    mine: Counter[Any] = Counter()
    written: Counter[Any] = Counter()
    for cast, count in trace.casts.items():
        mine[cast.source, cast.target] += count.calls
        written[cast.source, cast.target] += count.bytes
    assert (mine, written) == (theirs, volume)


@EVERY
def test_the_step_is_the_same_with_the_recorder(name):
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    before = Snapshot(model, batch, loss)
    found = []
    for mode in (WideCompute(), Recorder(model, samples=8, execute=execute)):
        before.restore()
        seed()
        with casting_rules(torch.device("cpu"), torch.float16), mode:
            with torch.autocast("cpu", dtype=torch.float16):
                value = loss(model, batch)
            value.backward()
        real = (
            model if isinstance(model, nn.Module) and name != "overrides_train_and_getattr" else nn.Module()
        )
        found.append((bits(value), random_bits(), bits_of(model, batch), model_bits(real)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "overrides_call",
            {
                "modules run without being called, counted as part of their caller: direct, bypassed": 2,
                "modules that were never called: unused": 1,
            },
        ),
        (
            "threads",
            {
                "modules run without being called, counted as part of their caller: fc2": 1,
                "module calls in threads of the model's own": 1,
                "backward operations whose forward was not seen": 3,
                "operations in threads of the model's own": 2,
            },
        ),
        ("transforms", {"inputs and outputs of modules inside function transforms": 2}),
        (
            "quantized_nested_and_subclassed",
            {
                "quantized tensors (torch.quint8)": 1,
                "operations on Doubled, seen only as the smaller operations it runs": 1,
                "operations on NestedTensor, seen only as the smaller operations it runs": 3,
            },
        ),
        (
            "scripted",
            {
                "modules run without being called, counted as part of their caller: part.0": 1,
                "modules that were never called: part.1": 1,
            },
        ),
        ("recurrent", {}),
        ("sparse_embedding", {}),
        ("complex_numbers", {}),
        ("checkpoint_non_reentrant", {}),
        ("custom_functions", {"modules that were never called: fc2": 1}),
    ],
)
def test_what_was_not_audited_is_named(name, said):
    assert report(name).not_audited == said


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "compiled",
            "compiled parts were run eagerly, so that their operations can be seen: the model, head, body",
        ),
        ("lazy", "a first run gave 3 lazy modules their shape"),
        ("half_that_insists", "the reference keeps half-precision parameters"),
    ],
)
def test_what_was_assumed_is_noted(name, note):
    REPORTS.pop((name, "fp16"), None)  # the shared one may have been made from a model prepared already
    assert any(text.startswith(note) for text in report(name).notes)
