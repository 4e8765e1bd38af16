"""Traces drawn at random, for tests that hold for every trace."""

import math

from builders import stats
from hypothesis import strategies as st

from ampcheck.values.trace import (
    Cast,
    CastCount,
    Constant,
    Failure,
    Integers,
    ModuleInfo,
    Phase,
    Site,
    StepSummary,
    Trace,
)

names = st.sampled_from(["", "a", "a.b", "head"])
small = st.integers(0, 9)
sites = st.builds(
    Site,
    names,
    st.sampled_from(["", "mm", "relu"]),
    st.sampled_from(["output", "input[0]"]),
    st.sampled_from(Phase),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(["", "model.py"]),
    small,
)
#: Sums of these squares are exact in any order, so that traces can be compared with ==.
tensors = st.lists(st.integers(-64, 64).map(lambda i: i / 8), max_size=6).map(stats)
casts = st.builds(
    Cast, names, st.just("float32"), st.just("float16"), st.sampled_from(Phase), st.just(""), small
)
traces = st.builds(
    Trace,
    sites=st.dictionaries(sites, tensors, max_size=6),
    casts=st.dictionaries(casts, st.builds(CastCount, small, small, small, small), max_size=4),
    steps=st.lists(st.builds(StepSummary, st.just(0.5), small, st.just(2.0), st.booleans()), max_size=2).map(
        tuple
    ),
    modules=st.lists(
        st.builds(ModuleInfo, names, st.just("Net")), max_size=3, unique_by=lambda m: m.path
    ).map(tuple),
    not_audited=st.dictionaries(st.sampled_from(["sparse", "complex"]), small),
    operations=small,
    measured=small,
    constants=st.lists(
        st.builds(Constant, sites, st.sampled_from([1e-8, -math.inf, 3.0])), max_size=3, unique=True
    ).map(tuple),
    integers=st.lists(st.builds(Integers, names, small, st.just(9), st.integers(1, 9)), max_size=2).map(
        tuple
    ),
    caught=st.lists(
        st.builds(Failure, st.just("RuntimeError"), names, names, names, names, small),
        max_size=2,
        unique=True,
    ).map(tuple),
)
