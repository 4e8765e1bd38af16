"""What Hypothesis draws reports from."""

from hypothesis import strategies as st
from loop_strategies import loops
from trace_strategies import sites, traces

from ampcheck.diagnose.verdict import judged
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Bought, Report
from ampcheck.values.trace import ErrorJump, PairError, UpdateLoss
from ampcheck.values.verdict import Coverage

texts = st.text(max_size=8)
numbers = st.floats(allow_nan=False)
sizes = st.floats(min_value=0, allow_nan=False)
errors = st.builds(PairError, *[st.integers(0, 99)] * 3, sizes, numbers, sizes, numbers, st.integers(0, 9))
findings = st.builds(
    Finding,
    texts,
    texts,
    texts,
    st.sampled_from(Severity),
    texts,
    st.lists(sites, max_size=3).map(tuple),
    st.dictionaries(texts, numbers, max_size=3),
    st.lists(texts, max_size=3).map(tuple),
)
several = st.lists(texts, max_size=3).map(tuple)
outcomes = st.builds(
    Outcome,
    st.integers(0, 24),
    texts,
    numbers,
    numbers,
    st.booleans(),
    several,
    numbers,
    numbers,
    st.dictionaries(texts, numbers, max_size=2),
)
scalers = st.builds(ScalerPlan, numbers, numbers, numbers, st.integers(1, 2000))
plans = st.builds(Plan, st.sampled_from(["fp16", "bf16", "fp32"]), several, several, st.none() | scalers)
reports = st.builds(
    Report,
    target=texts,
    precision=st.sampled_from(["fp16", "bf16"]),
    log2_scale=st.integers(-20, 24),
    reference=traces,
    low=traces,
    errors=st.dictionaries(sites, errors, max_size=3),
    findings=st.lists(findings, max_size=3).map(tuple),
    stand_in_loss=st.booleans(),
    refused_scales=st.lists(st.integers(0, 24), max_size=3).map(tuple),
    notes=st.lists(texts, max_size=3).map(tuple),
    environment=st.dictionaries(texts, texts, max_size=3),
    outcomes=st.dictionaries(texts, outcomes, max_size=2),
    error_jumps=st.lists(st.builds(ErrorJump, sites, numbers, numbers, sites), max_size=2).map(tuple),
    bought=st.none() | st.builds(Bought, *[st.integers(0, 9)] * 3, texts, st.tuples(*[sizes] * 3)),
    updates=st.lists(st.builds(UpdateLoss, texts, *[st.integers(0, 9)] * 3), max_size=2).map(tuple),
    plan=st.none() | plans,
    claims=st.lists(st.builds(Claim, texts, st.sampled_from(Tried), texts, texts), max_size=2).map(tuple),
    loop=st.none() | loops(),
)
coverages = st.builds(
    Coverage,
    *[st.integers(0, 9)] * 2,
    unseen=st.dictionaries(texts, st.integers(0, 9), max_size=2),
    completed=st.integers(0, 3),
    skipped=st.integers(0, 3),
    raised=st.sampled_from(["", "RuntimeError"]),
    asked=st.sampled_from(["", "fp16"]),
    asked_by=texts,
    gaps=st.lists(texts, max_size=2).map(tuple),
)
#: Reports with the verdict on them.
judged_reports = st.builds(judged, reports, coverages)
