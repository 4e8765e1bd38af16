"""Layers that a script trains in FP8 already are found by their class, and keep a report from saying safe."""

from dataclasses import replace
from importlib import import_module

import pytest
from torch import nn

from ampcheck.diagnose.rules import diagnose
from ampcheck.observe.fp8.in_use import in_use
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.recipe_audit import InUse
from ampcheck.values.report import Report
from ampcheck.values.trace import Trace


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.head = nn.MultiheadAttention(32, 2), nn.Linear(32, 32)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("tensorwise", "ao-tensorwise"), ("rowwise", "ao-rowwise"), ("rowwise_with_gw_hp", "ao-rowwise-gw-hp")],
)
def test_torchaos_layers_tell_their_recipe(name, recipe):
    float8 = import_module("torchao.float8")
    model = float8.convert_to_float8_training(Net(), config=float8.Float8LinearConfig.from_recipe_name(name))
    found = in_use(model, "model")
    assert {(layer.module, layer.recipe, layer.runs) for layer in found} == {
        ("model.attn.out_proj", recipe, False),
        ("model.head", recipe, True),
    }


def test_torchtitans_dropped_recipe_is_said(monkeypatch):
    float8 = import_module("torchao.float8")
    monkeypatch.setitem(__import__("sys").modules, "torchtitan", object())
    model = float8.convert_to_float8_training(Net(), config=float8.Float8LinearConfig(emulate=True))
    assert all("drops the recipe" in layer.note for layer in in_use(model, ""))


def test_other_layers_are_none():
    assert in_use(Net(), "model") == ()


def test_the_report_warns_and_survives_being_saved():
    layers = (InUse("a", "torchao", "ao-rowwise"), InUse("b.out_proj", "torchao", "ao-rowwise", runs=False))
    report = Report("train.py", "bf16", 0, Trace(), Trace(), in_use=layers)
    report = replace(report, findings=diagnose(report))
    finding = next(found for found in report.findings if found.code == "AMP706")
    assert finding.severity is Severity.WARNING
    assert "fp8:ao-rowwise" in finding.message
    assert "b.out_proj never runs" in finding.message
    assert from_json(to_json(report)) == report
