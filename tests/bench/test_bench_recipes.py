"""Rows of FP8 recipes in a bench: their accuracy is emulated, and nothing that was not measured is shown."""

import pytest
from bench_models import perceptron

from ampcheck.bench.request import Request
from ampcheck.bench.result import PRECISIONS, Bench
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.precisions import precision
from ampcheck.values.recipes import RECIPES


def test_every_recipe_without_a_past_has_a_row():
    assert {name for name in PRECISIONS if name.startswith("fp8:")} == {
        f"fp8:{name}" for name, chosen in RECIPES.items() if not chosen.delayed
    }
    assert precision("fp8:te-block").recipe == RECIPES["te-block"]
    with pytest.raises(ValueError, match="expected a precision"):
        precision("fp8:te-delayed")


def test_accuracy_is_that_of_eight_bits_and_no_time_is_told():
    names = ("fp32", "bf16", "fp8:te-current", "fp8:te-nvfp4")
    request = Request(precisions=names, parts=("time", "memory", "accuracy"), steps=3, seeds=1, budget=0.2)
    case = Bencher(perceptron, request).run(Bench("perceptron")).cases[0]
    rows = {row.precision: row for row in case.rows}
    errors = [rows[name].one_step.gradients.relative_rms for name in names]
    assert errors == sorted(errors)
    assert 2**-7 < errors[2] < 0.3 < 3 * errors[3]
    for name in names[2:]:
        assert rows[name].time is None
        assert rows[name].memory.predicted is None
        assert "emulated" in rows[name].message
