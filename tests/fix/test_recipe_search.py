"""What an audit of recipes finds, heals and says: on small models with one known weakness each."""

import json
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.diagnose.landscape import Zone, operand_landscape
from ampcheck.fix.patch import SKETCH
from ampcheck.fix.recipe_lab import RecipeLab
from ampcheck.fix.recipe_search import RecipeSearch
from ampcheck.observe.fp8.fit import chosen_by_frameworks
from ampcheck.observe.step import Step
from ampcheck.renderers import RENDERERS, render
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.targets.spec import Target
from ampcheck.values.findings import Severity
from ampcheck.values.recipes import RECIPES, recipe
from ampcheck.values.settings import Settings


class Chain(nn.Module):
    """Four layers; `loud` names one whose input has one huge row that no other row can share a scale with."""

    def __init__(self, loud=None, d=32):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(4))
        self.loud = loud

    def forward(self, x):
        for at, layer in enumerate(self.layers):
            if at == self.loud:
                gain = torch.ones(len(x), 1)
                gain[0] = 3e7
                x = F.layer_norm(layer(x * gain), x.shape[-1:])
            else:
                x = torch.tanh(layer(x))
        return x


def batch(seed=1, rows=64):
    torch.manual_seed(seed)
    return torch.randn(rows, 32), torch.randn(rows, 32)


def loss(model, data):
    return F.mse_loss(model(data[0]).float(), data[1])


def target(model, batches=None, **more):
    return Target("chain", model, batches or [batch()], loss, **more)


def run(model, precision, **settings):
    return audit(target(model), Settings(precision, **settings))


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_plain_chain_trains_under_every_recipe(name):
    report = run(Chain(), f"fp8:{name}")
    assert not [found for found in report.findings if found.severity is Severity.ERROR]
    assert report.plan.recipe == name
    assert len(report.recipes.layers) == 4


@pytest.mark.parametrize("loud", [0, 1, 3])
def test_the_layer_to_blame_is_found(loud):
    report = run(Chain(loud), "fp8:te-current-e4m3")
    assert report.plan.bf16_modules == (f"layers.{loud}",)
    harm = next(found for found in report.findings if found.code == "AMP701")
    assert harm.severity is Severity.ERROR
    assert harm.origin.module == f"layers.{loud}"
    assert all(str(claim.tried) == "confirmed" for claim in report.claims)
    result = report.recipes.results[0]
    assert result.planned.healed
    assert not result.outcome.healed


def test_brute_force_finds_no_smaller_set():
    lab = RecipeLab(Step(Chain(2), batch(), loss), recipe("te-current"))
    outcome = lab.outcome(recipe("te-current"))
    assert outcome.harmed
    found = RecipeSearch(lab, recipe("te-current"), 60, lambda _: None).run(outcome)
    assert found.plan.minimal
    assert len(found.plan.bf16_modules) == 1
    assert found.plan.cost == pytest.approx(
        lab.share(found.plan.bf16_modules) * len(found.plan.gemms or "123") / 3
    )


def test_another_recipe_comes_before_a_layer_where_it_costs_nothing():
    """A spike after small batches saturates under delayed scaling; the present scale knows it."""
    earlier = [batch(seed) for seed in range(3, 6)]
    spike = (batch()[0] * 1000, batch()[1])
    report = audit(target(Chain(), [spike], warmup=earlier), Settings("fp8:te-delayed"))
    assert report.recipes.results[0].outcome.harmed
    assert report.plan.recipe == "te-current"
    assert not report.plan.bf16_modules


def test_nothing_moves():
    model = Chain(1)
    made = target(model)
    before, generator = state(model), torch.get_rng_state()
    audit(made, Settings("fp8:te-nvfp4"))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_several_batches_are_trained_on_and_judged_after():
    report = audit(
        target(Chain(), [batch(seed) for seed in range(4)]), Settings("fp8:te-current", verify_steps=8)
    )
    audited = report.recipes
    assert audited.steps == 8
    assert audited.results[0].trained is not None
    assert set(audited.noise) == set(audited.judged)
    assert [claim.claim for claim in report.claims][-1] == "trains as bf16 over 8 steps"


def test_four_bits_are_judged_by_a_training_or_weakly():
    weak = run(Chain(), "fp8:te-nvfp4")
    assert any(found.code == "AMP704" for found in weak.findings)
    told = audit(
        target(Chain(), [batch(seed) for seed in range(4)]), Settings("fp8:te-nvfp4", verify_steps=6)
    )
    assert told.recipes.results[0].ends_as_bf16 is not None
    assert not any(found.code == "AMP704" for found in told.findings)


def test_all_recipes_give_one_recommendation():
    report = run(Chain(1), "fp8")
    assert {result.outcome.recipe for result in report.recipes.results} == set(RECIPES)
    chosen = next(r for r in report.recipes.results if r.outcome.recipe == report.plan.recipe)
    assert chosen.harmed == bool(report.plan.in_bf16)


def test_dimensions_are_told_before_anything_else():
    report = audit(target(nn.Sequential(nn.Linear(32, 20), nn.Linear(20, 32))), Settings("fp8:te-mxfp8"))
    found = next(found for found in report.findings if found.code == "AMP702")
    assert {site.module for site in found.sites} == {"0", "1"}
    assert found.severity is Severity.WARNING


def test_the_words_of_a_library_that_was_not_run_are_called_a_sketch():
    report = audit(target(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))), Settings("fp8:te-current"))
    assert report.patch.startswith(f"{SKETCH}# TransformerEngine")


class Own(nn.Linear):
    """A subclass whose forward would be lost."""

    def forward(self, x):
        return super().forward(x) * 2


def test_accelerates_default_leaves_the_ends_and_its_named_filter_nothing():
    """What is said of Accelerate is what Accelerate does."""
    ao = import_module("accelerate.utils.ao")
    float8 = import_module("torchao.float8.float8_linear")

    def converted(**given):
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
        ao.convert_model_to_fp8_ao(model, **given)
        return [path for path, part in model.named_modules() if isinstance(part, float8.Float8Linear)]

    assert converted() == ["1", "2"]
    assert converted(module_filter_func=ao.filter_first_and_last_linear_layers) == ["0", "1", "2", "3"]
    said = list(
        chosen_by_frameworks(recipe("ao-rowwise"), nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))))
    )
    assert "leaves 0 and 3 in bf16" in said[0]
    assert "leaves out none" in said[0]
    assert not list(chosen_by_frameworks(recipe("te-current"), nn.Linear(32, 32)))


def test_the_landscape_of_operands_shows_what_the_casts_lose():
    """Witness: the casts themselves, element by element; the picture has only powers of two."""
    report = run(Chain(2), "fp8:te-current", verify=False)
    [result] = report.recipes.results
    for name in {one.format for one in result.operands}:
        held = [one for one in result.operands if one.format == name]
        picture = operand_landscape(held, name)
        assert [row.label for row in picture.rows] == [one.place for one in held if one.scaled.nonzero]
        for one, row in zip((one for one in held if one.scaled.nonzero), picture.rows, strict=True):
            assert sum(row.counts) == row.nonzero == one.scaled.nonzero
            zero = row.share(Zone.UNDERFLOWED, picture.columns)
            assert zero <= one.underflow_share <= zero + 0.02
            assert row.share(Zone.OVERFLOW, picture.columns) <= one.saturated_share


def test_what_a_swap_of_modules_misses_is_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.own = nn.MultiheadAttention(32, 2), Own(32, 32)

        def forward(self, x):
            return self.own(self.attn(x, x, x)[0])

    report = audit(target(Net()), Settings("fp8:ao-rowwise"))
    assert set(report.recipes.missed) == {"attn", "attn.out_proj", "own"}
    assert "drops" in report.recipes.missed["own"]
    assert next(found for found in report.findings if found.code == "AMP703").origin.module == "own"


def test_what_nothing_was_seen_of_is_not_safe():
    report = audit(target(nn.Sequential(nn.Flatten(), nn.LayerNorm(32))), Settings("fp8:te-current"))
    assert not report.recipes.layers
    assert "SAFE" not in render(report, "terminal")


@pytest.fixture(scope="module")
def blaming():
    return run(Chain(1), "fp8:te-current")


@pytest.mark.parametrize("form", sorted(RENDERERS))
def test_every_renderer_and_the_round_trip(blaming, form):
    report = blaming
    again = from_json(to_json(report))
    assert again == report
    assert render(again, form) == render(report, form)
    if form == "json":
        plan = json.loads(render(report, form))["plan"]
        assert (plan["recipe"], plan["bf16_modules"]) == ("te-current", ["layers.1"])
