"""What a report answers about itself."""

from dataclasses import replace

import pytest
from builders import Layer, finding, report, stats
from examples import REPORTS, clean

from ampcheck.findings import Severity
from ampcheck.formats import BF16, FP16
from ampcheck.report import by_place, low_backward, low_tensors
from ampcheck.stats import merge
from ampcheck.trace import Phase, Site, Trace

SITE = Site("a", "mm", "output", Phase.BACKWARD, "float16", "model.py", 3)


def test_the_worst_severity_counts() -> None:
    severities = [Severity.INFO, Severity.ERROR, Severity.WARNING]
    made = [finding(SITE, severity=severity) for severity in severities]
    assert replace(clean(), findings=tuple(made)).worst is Severity.ERROR
    assert replace(clean(), findings=tuple(made[:1])).worst is Severity.INFO
    assert clean().worst is None
    assert sorted(severities, key=lambda s: s.rank) == [Severity.ERROR, Severity.WARNING, Severity.INFO]


@pytest.mark.parametrize(("name", "fmt", "dtype"), [("clean", FP16, "float16"), ("bf16", BF16, "bfloat16")])
def test_format_and_dtype_follow_the_precision(name: str, fmt: object, dtype: str) -> None:
    made = REPORTS[name]()
    assert made.format == fmt
    assert made.dtype == dtype
    assert dtype in {site.dtype for site in made.low.sites}


def test_what_either_run_did_not_see_is_said() -> None:
    made = replace(clean(), reference=Trace(not_audited={"a": 1}), low=Trace(not_audited={"b": 2}))
    assert made.not_audited == {"a": 1, "b": 2}


def test_places_lose_no_element_and_join_dtypes() -> None:
    half, full = replace(SITE, dtype="float16"), replace(SITE, dtype="float32")
    trace = Trace({half: stats([1.0, 0.0]), full: stats([2.0])})
    assert by_place(trace) == {SITE.place: stats([1.0, 0.0, 2.0])}


def test_gradients_in_question_are_those_of_low_precision_operations_as_fp32_has_them() -> None:
    made = report([Layer("half", line=1), Layer("full", dtype="float32", line=2)])
    copy = Site("half", "_to_copy", "output", Phase.BACKWARD, "float16")
    leaf = Site(
        "half", "", "grad_input[0]", Phase.BACKWARD, "float16"
    )  # the module's own, counted at its operation
    low = {**made.low.sites, copy: stats([1.0]), leaf: stats([2.0])}
    reference = {**made.reference.sites, replace(leaf, dtype="float32"): stats([2.0])}
    made = replace(made, low=replace(made.low, sites=low), reference=replace(made.reference, sites=reference))
    expected = {
        site.place: held
        for site, held in made.reference.sites.items()
        if (site.module, site.op, site.phase) == ("half", "addmm_backward", Phase.BACKWARD)
    }
    assert low_backward(made) == low_tensors(made, Phase.BACKWARD) == expected
    assert merge(low_tensors(made, Phase.FORWARD).values()).numel == merge(expected.values()).numel
