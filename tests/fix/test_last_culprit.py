"""What is to blame: the last of several places that heal, a cast that overflows, not an infinity that is absorbed."""

from dataclasses import replace
from math import inf

import pytest
import torch
from builders import answer
from running import CASES, load
from torch import nn
from torch.nn import functional

from ampcheck import check
from ampcheck.diagnose.rules.gradients import scaler_missing
from ampcheck.diagnose.suspects import Suspect
from ampcheck.fix.last_culprit import all_but, last_culprit
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.settings import Settings


def audited(name, precision):
    case = load(CASES / f"{name}.py")
    return check(case.model(), case.batch(), case.loss, settings=Settings(precision=precision))


@pytest.mark.parametrize(
    ("name", "upstream", "culprit", "op"),
    [
        ("moe_slot_cumsum_bf16", "moe.gate", "moe.slots", "_to_copy"),
        ("euler_accumulate_bf16", "inp", "solver", "add"),
    ],
)
def test_of_places_that_heal_the_last_before_the_error_is_blamed(name, upstream, culprit, op):
    report = audited(name, "bf16")
    worst = report.findings[0]
    assert (worst.code, worst.origin.module, worst.origin.op) == ("AMP501", culprit, op)
    assert report.plan.fp32_modules == (culprit,)

    # What is upstream heals too, since FP32 flows on from it; that alone would name the wrong place.
    def heals(places):
        return places[0].module in {upstream, culprit}

    assert last_culprit(report, Suspect(module=upstream), heals, proved=True).place.module == culprit


def test_nothing_else_is_blamed_where_only_the_found_place_heals():
    report = audited(
        "soft_argmax" if (CASES / "soft_argmax.py").exists() else "stats_pooling_variance", "fp16"
    )
    place = Suspect(module=report.plan.fp32_modules[0])
    assert last_culprit(report, place, lambda _: False, proved=True).place == place


def test_a_place_that_holds_most_of_a_model_is_proved_by_one_of_its_lines():
    report = audited("retention_decay_bf16", "bf16")
    worst = report.findings[0]
    assert (worst.severity, worst.origin) == ("error", report.placed)
    assert f"and so does {report.placed.location} alone" in worst.message
    assert from_json(to_json(report)).placed == report.placed


def test_a_place_that_holds_most_of_a_model_is_proved_by_what_the_rest_does_not_heal():
    report = audited("blockwise_attention_lse_bf16", "bf16")
    worst = report.findings[0]
    assert worst.severity == "error"
    assert report.outcomes["rest"].harmed
    assert "keeping everything else in FP32 does not" in worst.message
    rest = all_but(report, Suspect(module="block"))
    assert {place.module for place in rest if place.module} == {"inp", "head"}
    assert not any(place.module.startswith("block") for place in rest)
    assert "gradient error" in answer(report)[1]


def test_a_cast_that_overflows_is_the_origin_and_not_the_quotient_behind_it():
    report = audited("price_target_cast", "fp16")
    worst = report.findings[0]
    line = next(
        at
        for at, text in enumerate((CASES / "price_target_cast.py").read_text().splitlines(), 1)
        if ".to(" in text
    )
    assert (worst.code, worst.origin.op, worst.origin.line) == ("AMP101", "_to_copy", line)
    assert worst.numbers["elements"] == int(
        (load(CASES / "price_target_cast.py").batch()["price"] >= 65520).sum()
    )
    assert report.error_jumps[0].error == inf
    assert from_json(to_json(report)).error_jumps == report.error_jumps
    assert f":{line}" in answer(report)[1]


class Masked(nn.Module):
    """Attention under a mask that becomes -inf in half, and then a product that overflows where it is asked to."""

    def __init__(self, factor):
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(30, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.gated, self.head = Gated(factor), nn.Linear(16, 4)

    def forward(self, tokens):
        x = self.embed(tokens)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 4
        mask = (tokens == 0)[:, None].float() * torch.finfo(torch.float32).min
        weights = (scores + mask.to(scores.dtype)).softmax(-1)
        return self.head(self.gated((weights.to(scores.dtype) @ x).float()).mean(1))


class Gated(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.up, self.gate, self.factor = nn.Linear(16, 16), nn.Linear(16, 16), factor

    def forward(self, x):
        return (self.up(x) * self.factor) * (self.gate(x) * self.factor) / self.factor**2


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_a_mask_that_a_softmax_absorbs_is_not_blamed_for_what_overflows_later(factor):
    torch.manual_seed(0)
    tokens = torch.randint(1, 30, (4, 10))
    tokens[::2, 7:] = 0
    labels = torch.arange(4)

    def loss(model, batch):
        return functional.cross_entropy(model(batch), labels)

    report = check(Masked(factor), tokens, loss, settings=Settings(precision="fp16"))
    errors = [found for found in report.findings if found.severity == "error"]
    if factor == 1.0:
        assert not errors
    else:
        assert [(found.code, found.origin.module) for found in errors[:1]] == [("AMP101", "gated")]


def test_a_head_that_does_not_learn_without_a_scale_is_told_of_though_the_rest_does():
    report = audited("aux_head_alone_vanishes", "fp16")
    worst = report.findings[0]
    assert (worst.code, worst.origin.module) == ("AMP204", "aux")
    assert report.outcomes["unscaled"].underflow < 0.15
    # Gradients that no scale makes like those of FP32 are noise, and noise may vanish.
    noise = replace(report.outcomes["settled"], off=("aux.weight",))
    assert scaler_missing(report)
    assert not scaler_missing(replace(report, outcomes={**report.outcomes, "settled": noise}))
