"""Runs of changed steps: none twice, and of the time a plan costs a ratio only where both kinds lie apart."""

from statistics import median

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ampcheck.diagnose.suspects import Suspect
from ampcheck.fix.trials import Times, Trials
from ampcheck.fix.verify import Lab
from ampcheck.observe.step import Step

SECONDS = st.lists(st.floats(0.01, 10.0), min_size=2, max_size=5).map(tuple)


@given(SECONDS, SECONDS)
def test_a_ratio_is_told_only_where_every_run_of_one_kind_took_longer(without, kept):
    words = Times(without, kept).words
    apart = all(a < b for a in without for b in kept) or all(a > b for a in without for b in kept)
    assert ("times as long" in words) == apart
    assert ("no difference measured" in words) == (not apart)
    if apart:
        assert f"takes {median(kept) / median(without):.2f} times" in words


def test_one_run_of_each_tells_nothing():
    assert "no difference measured" in Times((1.0,), (3.0,)).words


def test_the_same_step_is_run_once_and_timed_as_often_as_asked():
    lab = Lab(Step(nn.Linear(3, 2), torch.ones(4, 3), lambda model, batch: model(batch).square().mean()))
    trials = Trials(lab, "fp16")
    first = trials.attempt(4, [Suspect(module="")])
    assert trials.attempt(4, (Suspect(module=""),)) is first
    assert lab.trials == 1
    assert trials.attempt(4, precision="fp16") == trials.attempt(4)
    assert trials.attempt(4, precision="bf16") != trials.attempt(4)
    assert lab.trials == 3
    times = trials.timed((), 4)
    assert lab.trials == 3 + len(times.without) + len(times.kept)
