"""What a test may expect: each expectation against the statistics themselves, and what it prints where it fails."""

import unicodedata
from dataclasses import replace

import pytest
import torch
from examples import REPORTS, clean, forward_overflow, gradient_underflow, planned
from torch import nn

from ampcheck import check
from ampcheck.errors import ConfigError
from ampcheck.pytest_plugin.expectations import Audited
from ampcheck.values.findings import Severity
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.trace import Phase

EVERY = {
    "safe": lambda audited: audited.assert_safe("info"),
    "underflow": lambda audited: audited.assert_underflow_below(0),
    "forward underflow": lambda audited: audited.assert_underflow_below(0, phase="forward"),
    "overflow": lambda audited: audited.assert_no_overflow(),
    "set": lambda audited: audited.assert_fp32_set(["head", "no.such.layer*"]),
    "scale": lambda audited: audited.assert_scale_between(3, 1000),
    "dtypes": lambda audited: audited.assert_dtypes({"*": "fp8", "stem.conv": torch.float64, "heat": "fp16"}),
}


def holds(expectation) -> bool:
    try:
        expectation()
    except AssertionError:
        return False
    return True


def underflowed(report):
    """Return the share of gradient elements that became zero, from the statistics of both runs by hand."""
    low = {site: held for site, held in report.low.sites.items() if site.phase is Phase.BACKWARD and site.op}
    low = {site: held for site, held in low.items() if site.dtype == report.dtype}
    wide = {site.place: held for site, held in report.reference.sites.items()}
    lost = sum(max(0, held.zeros - wide[site.place].zeros) for site, held in low.items())
    return lost / max(1, sum(sum(wide[site.place].counts) for site in low))


@pytest.mark.parametrize("name", sorted(set(REPORTS) - {"empty"}))
def test_underflow_is_the_share_of_elements_that_became_zero(name):
    audited = Audited(REPORTS[name]())
    share = underflowed(audited.report)
    assert holds(lambda: audited.assert_underflow_below(share * 1.0001 + 1e-9))
    assert holds(lambda: audited.assert_underflow_below(share)) == (share == 0)


def test_the_examples_lose_something():
    assert underflowed(gradient_underflow()) > 0.5
    assert underflowed(clean()) == 0


@pytest.mark.parametrize("name", REPORTS)
def test_overflow_is_what_is_finite_in_fp32_only(name):
    report = REPORTS[name]()
    wide = {site.place: held for site, held in report.reference.sites.items()}
    over = [
        site
        for site, held in report.low.sites.items()
        if site.op and held.infs + held.nans > wide[site.place].infs + wide[site.place].nans
    ]
    assert holds(Audited(report).assert_no_overflow) == (not over)


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("limit", ["error", "warning", "info", "never"])
def test_safe_has_no_finding_from_a_severity_on(severity, limit):
    report = replace(
        clean(), findings=tuple(replace(f, severity=severity) for f in forward_overflow().findings)
    )
    order = ["error", "warning", "info"]
    bad = limit != "never" and order.index(severity) <= order.index(limit)
    # What is an error is unsafe for the verdict too.
    assert holds(lambda: Audited(report).assert_safe(limit)) == (not bad)
    assert holds(Audited(report, fail_on=limit).assert_safe) == (not bad)
    for entry in ("AMP101", "AMP1", "forward-overflow"):
        assert holds(lambda entry=entry: Audited(report).assert_safe(limit, ignore=[entry]))
    assert holds(lambda: Audited(report).assert_safe(limit, ignore=["AMP2"])) == (not bad)


def test_what_no_rule_explains_is_not_safe_either():
    assert not holds(Audited(REPORTS["empty"]()).assert_safe)
    assert not holds(Audited(replace(gradient_underflow(), findings=())).assert_safe)


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ConfigError, match="did you mean"):
        Audited(clean()).assert_safe(ignore=["near-overflw"])
    with pytest.raises(ValueError, match="expected fail_on"):
        Audited(clean()).assert_safe("eror")


@pytest.mark.parametrize(
    ("places", "fits"),
    [
        (["blocks.1.attn", "model.py:60", "losses.py:7"], True),
        (["blocks.*.attn", "*.py:*"], True),
        (["blocks.1.attn", "model.py:60"], False),  # one more has to stay
        (["blocks.1.attn", "*.py:*", "head"], False),  # one need not any more
        ([], False),
    ],
)
def test_the_fp32_set_is_two_sided(places, fits):
    assert holds(lambda: Audited(planned()).assert_fp32_set(places)) == fits


@pytest.mark.parametrize(
    ("low", "high", "fits"), [(2**13, 2**13, True), (1, 2**12, False), (2**14, 2**20, False)]
)
def test_the_advised_scale_lies_in_a_range_with_its_ends(low, high, fits):
    assert holds(lambda: Audited(planned()).assert_scale_between(low, high)) == fits


def test_what_the_plan_does_not_say_is_not_expected_of_it():
    without = replace(planned(), plan=Plan("bf16"))
    with pytest.raises(AssertionError, match="training needs no GradScaler"):
        Audited(without).assert_scale_between(1, 2**24)
    Audited(without).assert_fp32_set([])
    for expectation in (lambda a: a.assert_fp32_set([]), lambda a: a.assert_scale_between(1, 2**24)):
        with pytest.raises(AssertionError, match="no plan to judge"):
            expectation(Audited(clean()))


class Net(nn.Module):
    """Modules that hand on several dtypes, and remember which."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.seen = {}

    def forward(self, x):
        for name, module in self.named_children():
            x = module(x)
            self.seen[name] = x.dtype
        return x


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    model = Net()
    low = {}

    def loss(model, batch):
        out = model(batch)
        if torch.float16 in model.seen.values():
            low.update(model.seen)
        return out.float().square().mean()

    return Audited(check(model, torch.randn(4, 8), loss)), low


def test_dtypes_are_those_that_the_model_itself_saw(net):
    audited, seen = net
    assert set(seen.values()) == {torch.float16, torch.float32}
    audited.assert_dtypes(seen)
    audited.assert_dtypes({name: str(dtype).removeprefix("torch.") for name, dtype in seen.items()})
    for name, dtype in seen.items():
        other = torch.float32 if dtype is torch.float16 else torch.float16
        with pytest.raises(AssertionError, match=f"{name}  expected"):
            audited.assert_dtypes({name: other})
    with pytest.raises(AssertionError, match="did you mean norm"):
        audited.assert_dtypes({"nrm": torch.float32})


def test_a_step_that_raises_is_not_judged_by_its_numbers():
    def loss(model, batch):
        return nn.functional.binary_cross_entropy(model(batch).sigmoid(), torch.ones(4, 2))

    audited = Audited(check(nn.Linear(8, 2), torch.randn(4, 8), loss))
    assert not holds(audited.assert_safe)
    for expectation in (
        lambda: audited.assert_underflow_below(1.0),
        audited.assert_no_overflow,
        lambda: audited.assert_dtypes({}),
    ):
        with pytest.raises(AssertionError, match="the step raises in fp16") as told:
            expectation()
        assert "binary_cross_entropy" in str(told.value)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("expectation", EVERY)
def test_what_is_printed_fits_and_is_harmless(name, expectation):
    report = REPORTS[name]()
    report = replace(report, plan=report.plan or Plan("fp16", ("stem.conv",), (), ScalerPlan(2.0**20)))
    try:
        EVERY[expectation](Audited(report))
    except AssertionError as error:
        text = str(error)
    else:
        return
    # With what pytest writes before the first line, and the others, of a test in a class.
    first, *rest = text.splitlines()
    assert len(f"{12 * ' '}AssertionError: {first}") <= 100
    assert all(len(f"{12 * ' '}{line}") <= 100 for line in rest)
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]


def test_a_failure_names_the_finding_its_numbers_the_line_and_the_cure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("\n" * 25 + "scores = query @ key\n")
    made = planned()
    origin = made.findings[0].sites[0]
    assert origin.location == "model.py:26"
    with pytest.raises(AssertionError) as told:
        Audited(made).assert_safe()
    text = str(told.value)
    for part in (
        "error[AMP101] forward-overflow  model.py:26",
        "amax 131,000",
        "26 | scores = query @ key",
        "- keep blocks.1.attn in FP32",
        'ignore=["AMP101"]',
    ):
        assert part in text
    assert "bf16 needs none of this" not in text  # refuted


def test_an_audited_report_is_one_short_line_in_a_traceback():
    assert repr(Audited(clean())).startswith("<model.py in fp16 at loss scale 2^16: safe, ")
    assert len(repr(Audited(REPORTS["nasty"]()))) < 400


def test_what_heals_says_how_the_step_was_before_any_of_it():
    claims = (
        Claim("keep a in FP32", Tried.CONFIRMED, "loss is not finite", "gradient error 0.05 %"),
        Claim(
            "start the loss scale at 2^14",
            Tried.CONFIRMED,
            "without a loss scale: fine",
            "gradient error 0.04 %",
        ),
    )
    report = replace(forward_overflow(), claims=claims)
    with pytest.raises(AssertionError) as failed:
        Audited(report).assert_safe()
    assert "loss is not finite → gradient error 0.04 %" in str(failed.value)
