"""The table of reports/recipe_witnesses.md: every recipe bit for bit another implementation's."""

import dataclasses
from pathlib import Path

import pytest
import torch
from recipe_witnesses import REPORT, by_hand, page, study

from ampcheck.observe.fp8.casts import rounded
from ampcheck.values.recipes import RECIPES, Scaling


@pytest.fixture(scope="module")
def found():
    return study()


def test_every_recipe_has_a_witness_and_is_bit_for_bit_equal(found):
    assert {one.recipe for one in found} == set(RECIPES)
    for one in found:
        if "_scaled_mm" in one.equal_to:  # scales after the sum: the last bit of bf16
            assert one.differ <= one.elements / 1000
            assert one.furthest < 2.0**-8
        else:
            assert (one.differ, one.furthest) == (0, 0.0), one


def test_the_report_is_what_the_study_says(found):
    shown = [line.split("|")[1:5] for line in Path(REPORT).read_text().splitlines() if line.startswith("| ")]
    assert shown == [line.split("|")[1:5] for line in page(found).splitlines() if line.startswith("| ")]


def test_another_rule_is_seen():
    cast = RECIPES["ao-rowwise"].casts["fprop", "input"]
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    other = dataclasses.replace(cast, scaling=Scaling.EXACT)
    assert bool((rounded(x, cast).values != torch.from_numpy(by_hand(x.numpy(), other))).any())
