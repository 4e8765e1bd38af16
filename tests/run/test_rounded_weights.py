"""Weights that an evaluation computes with, and that a script has made where no operation of torch's runs."""

import copy
import inspect

import numpy as np
import pytest
import torch
from small_fits import fits, network

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def average(model, kept, dtype):
    """Take a step of an average in NumPy; half precision rounds all of it away."""
    now = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, value in now.items():
        one = kept.setdefault(name, (value + 1).astype(dtype))
        one += (dtype(1e-4) * (value - one)).astype(dtype)


def loads(model, kept):
    model.load_state_dict({name: torch.from_numpy(one) for name, one in kept.items()})
    return model


def into_another(model, kept):
    return loads(copy.deepcopy(model).eval(), kept)


def in_its_place(model, kept):
    return loads(model.eval(), kept)


def exported(model, _):
    """Return the weights as they are, rounded once."""
    return copy.deepcopy(model).eval().half().float()


def as_it_is(model, _):
    return model.eval()


@pytest.mark.parametrize("steps", [8, 20])
@pytest.mark.parametrize(
    ("ends", "dtype", "unseen"),
    [
        (into_another, np.float16, True),
        (in_its_place, np.float16, True),
        (into_another, np.float32, False),
        (in_its_place, np.float32, False),
        (exported, np.float16, False),
        (as_it_is, np.float16, False),
    ],
)
def test_weights_in_half_precision_that_nobody_has_seen_made_are_never_safe(ends, dtype, unseen, steps):
    torch.manual_seed(0)
    model, kept, begun = network(), {}, {}
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        for _ in range(steps):
            fits(model, optimizer, torch.linspace(-1, 1, 8))
            average(model, kept, dtype)
            begun = begun or {name: one.copy() for name, one in kept.items()}
        last = ends(model, kept)
        with torch.no_grad():
            last(torch.randn(16, 8))
    assert not session.watcher.broken, session.watcher.not_seen
    stands = np.array_equal(kept["0.weight"], begun["0.weight"])
    assert stands is (dtype is np.float16)  # it has not moved by a bit since it was made
    verdict = session.report("script.py").verdict
    line = inspect.getsourcelines(loads)[1] + 1
    words = f"the weights used at test_rounded_weights.py:{line} were rounded to half precision"
    if ends is in_its_place and unseen:
        assert any(words in gap for gap in verdict.coverage.gaps)
    assert verdict.word is (Health.PARTLY_AUDITED if unseen else Health.SAFE)
