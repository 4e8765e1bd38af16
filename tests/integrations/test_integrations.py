"""Integrations, each tried in its real framework: trained as without it, bit for bit, and seen by its own names."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import forked
import pytest
from builders import answer
from scripts_run import ran_in

from ampcheck.saved.report_json import read
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health

SCRIPT = Path(__file__).parents[1] / "helpers" / "framework_scripts.py"


def trained(folder, name, package, **environment):
    """Train in a process of its own: frameworks warn, set hooks and hold on to devices."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    ran_in([str(SCRIPT)], [name, str(folder)], folder, environment)
    assert json.loads((folder / f"{name}.json").read_text())["same"]
    return read(folder / f"{name}.report.json")


def modules(report):
    return {module.path for module in report.low.modules}


def casts(report, module):
    return {(cast.source, cast.target) for cast in report.low.casts if cast.module == module}


def test_lightning(tmp_path):
    report = trained(tmp_path, "lightning", "lightning")
    assert (report.loop.steps, report.loop.recorded, report.precision) == (6, (0,), "bf16")
    assert {"model.net.0", "model.net.1", "model.net.2", "model.net.3"} <= modules(report)
    assert casts(report, "model.net.0") == {("float32", "bfloat16"), ("bfloat16", "float32")}
    assert any("bf16-mixed" in note for note in report.notes)
    assert not report.findings


def test_transformers(tmp_path):
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: transformers' Trainer needs it")
    report = trained(tmp_path, "transformers", "transformers")
    assert (report.loop.steps, report.loop.recorded, report.precision) == (6, (0,), "bf16")
    assert "model.bert.encoder.layer.0.attention.self.query" in modules(report)
    assert any("bf16 was asked for" in note for note in report.notes)


def test_accelerate(tmp_path):
    report = trained(tmp_path, "accelerate", "accelerate")
    assert (report.loop.steps, report.loop.recorded, report.precision) == (3, (0,), "bf16")
    assert {"model.0", "model.3"} <= modules(report)
    assert report.target == "Sequential"


def test_keras_on_torch(tmp_path):
    report = trained(tmp_path, "keras", "keras", KERAS_BACKEND="torch")
    assert (report.loop.steps, report.loop.recorded, report.precision) == (6, (0, 3), "fp16")
    assert {"small", "small.first", "small.norm", "small.head"} <= modules(report)
    assert ("float32", "float16") in casts(report, "small.first")
    assert ("float16", "float32") in casts(report, "small.head")  # it computes in FP32
    computed = {
        (site.module, site.dtype)
        for site in report.low.sites
        if site.op == "addmm" and site.phase is Phase.FORWARD
    }
    assert computed == {("small.first", "float16"), ("small.head", "float32")} or not computed
    assert report.log2_scale == 10
    assert report.loop.first_scales == {"scaler 1": 2.0**10}
    assert report.outcomes["settled"].grad_error < 0.01
    assert "Keras dtype policy float32: head" in report.notes
    assert "Keras dtype policy mixed_float16: first, norm" in report.notes


def test_keras_skips_are_seen_with_their_scale(tmp_path):
    report = trained(tmp_path, "keras_overflow", "keras", KERAS_BACKEND="torch")
    assert [(event.step, event.before, event.after) for event in report.loop.scales] == [
        (step, 2.0 ** (30 - step), 2.0 ** (29 - step)) for step in range(6)
    ]
    assert report.loop.skipped == 6
    assert report.loop.thing("scaler 1").settings["init_scale"] == 2.0**30


def test_keras_on_another_backend_says_what_it_cannot_see(tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    report = trained(tmp_path, "keras_overflow", "keras", KERAS_BACKEND="jax")
    assert [(event.step, event.before, event.after) for event in report.loop.scales] == [
        (step, 2.0 ** (30 - step), 2.0 ** (29 - step)) for step in range(6)
    ]
    assert (report.loop.steps, report.loop.recorded) == (6, ())
    assert answer(report) == (
        Health.UNKNOWN,
        "no step was recorded, so nothing was judged; 6 of 6 steps skipped",
    )
    assert any("Keras runs on jax" in note and "were not" in note for note in report.notes)
    assert {site.module for site in report.low.sites} == {"small.first", "small.norm", "small.head"}
    assert all(site.phase is Phase.STATE and site.slot.startswith("param[") for site in report.low.sites)
    assert "Keras dtype policy mixed_float16: first, norm" in report.notes


@pytest.mark.parametrize("how", ["auto", "wrapped"])
def test_determined_off_its_cluster(tmp_path, how):
    if importlib.util.find_spec("determined") is None:
        pytest.skip("determined is not installed")
    report = tmp_path / "report.json"
    trial, paths = str(SCRIPT.parent / "determined_trial.py"), [SCRIPT.parent.parent, SCRIPT.parent]
    run = ["-m", "ampcheck", "run", "--as-cuda", "--every", "3", "--first", "1", "--format", "json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    subprocess.run(
        [*forked.python(), *run, "-o", str(report), trial, how],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=environment,
    )
    seen = read(report)
    assert (seen.precision, seen.log2_scale, seen.loop.steps) == ("fp16", 16, 6)
    assert {"model.0", "model.3"} <= modules(seen)  # behind the proxy that casts by itself
    assert seen.loop.first_scales == {"scaler 1": 2.0**16}
    assert seen.outcomes["settled"].grad_error < 0.01
    # On a CPU that stands in for nothing, torch has switched AMP off, and the callback sees FP32.
    subprocess.run(
        [*forked.python(), trial, how, str(report)],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=environment,
    )
    bare = read(report)
    assert (bare.precision, bare.loop.steps, bare.loop.recorded) == ("fp32", 6, (0, 3))
    assert {"model.0", "model.3"} <= modules(bare)
