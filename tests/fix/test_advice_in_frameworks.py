"""Printed advice, tried in frameworks that are installed by hand: `ampcheck explain frameworks` says how.

Each script trains on a CPU that stands in for CUDA, with the line as it is printed. Where the framework's own start
skips every step, the advised one skips none.
"""

import importlib.util
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from builders import answer

from ampcheck.cli.watched import NO_TRAINING
from ampcheck.fix.framework_terms import in_terms
from ampcheck.saved.report_json import read
from ampcheck.values.plan import Plan, ScalerPlan
from ampcheck.values.verdict import Health

pytestmark = pytest.mark.slow
HELPERS = Path(__file__).parents[1] / "helpers"
START = 2.0**6
FP16, BF16 = Plan("fp16", scaler=ScalerPlan(START)), Plan("bf16")


def needs(package):
    """Skip where a package is not installed; one may be a part of another."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    return pytest.mark.skipif(found is None, reason=f"{package} is not installed")


def printed(framework, plan):
    (sentence,) = in_terms(plan, [framework])
    return sentence.removeprefix(f"in {framework}: ")


def run(folder, *words, watched=(), ends=(0,)):
    """Run one of the trainings by itself, or watched; return what it printed."""
    paths = os.pathsep.join(filter(None, [str(HELPERS.parents[1]), os.environ.get("PYTHONPATH", "")]))
    own = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    own |= {
        "PYTHONPATH": paths,
        "DS_ACCELERATOR": "cpu",
        "YOLO_CONFIG_DIR": str(folder),
        "YOLO_OFFLINE": "true",
    }
    done = subprocess.run(
        [sys.executable, *watched, str(HELPERS / "advised_trainings.py"), *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=500,
        env=os.environ | own,
    )
    assert done.returncode in ends, done.stderr
    return done.stdout


def trained(folder, *words):
    """Train with a line of advice; return what ampcheck saw of it, and what was printed."""
    report = folder / "report.json"
    watched = ["-m", "ampcheck", "run", "--as-cuda", "--first", "1", "--format", "json", "-o", str(report)]
    said = run(folder, *words, watched=watched, ends=(0, NO_TRAINING))
    return read(report), said


def starts(report):
    return report.precision, report.loop.first_scales, report.loop.skipped, report.loop.steps


@needs("determined")
@pytest.mark.parametrize(
    ("framework", "how"), [("Determined", "wrapped"), ("Determined with use_amp", "automatic")]
)
def test_determined(tmp_path, framework, how):
    own = "self.scaler = self.context.wrap_scaler(torch.amp.GradScaler())" if how == "wrapped" else ""
    alone, _ = trained(tmp_path, "determined", own, how)
    assert starts(alone) == ("fp16", {"scaler 1": 2.0**16}, 3, 3)
    advised, _ = trained(tmp_path, "determined", printed(framework, FP16), how)
    (scale,) = advised.loop.first_scales.values()
    assert starts(advised) == ("fp16", advised.loop.first_scales, 0, 3)
    assert scale == START


@needs("determined")
def test_determined_in_bf16(tmp_path):
    report, _ = trained(tmp_path, "determined", printed("Determined", BF16), "region")
    assert starts(report) == ("bf16", {}, 0, 3)


@needs("ultralytics")
def test_ultralytics(tmp_path):
    subprocess.run([sys.executable, HELPERS / "yolo_data.py", tmp_path / "data"], check=True)
    alone, _ = trained(tmp_path, "ultralytics", "pass")
    assert starts(alone) == ("fp16", {"scaler 1": 2.0**16}, 3, 3)
    advised, _ = trained(tmp_path, "ultralytics", printed("Ultralytics", FP16))
    assert starts(advised) == ("fp16", advised.loop.first_scales, 0, 3)
    assert list(advised.loop.first_scales.values()) == [START]
    low, _ = trained(tmp_path, "ultralytics", printed("Ultralytics", BF16))
    assert (low.precision, low.loop.skipped) == ("bf16", 0)


@needs("megatron.core")
def test_megatron_core(tmp_path):
    alone, said = trained(tmp_path, "megatron", "--fp16")
    assert said.split("\n")[:3] == [
        "skipped at 4294967296.0",
        "skipped at 4294967296.0",
        "skipped at 2147483648.0",
    ]
    assert answer(alone) == (Health.UNKNOWN, "no step was completed, so nothing was trained")
    advised, said = trained(tmp_path, "megatron", printed("Megatron", FP16))
    assert said.split("\n")[:3] == ["stepped at 64.0"] * 3
    assert advised.loop.scaling == "the loss is multiplied by 2^6; what divides its gradients was not seen"
    assert advised.verdict.word is Health.PARTLY_AUDITED
    low, said = trained(tmp_path, "megatron", printed("Megatron", BF16))
    assert said.split("\n")[:3] == ["stepped at 1.0"] * 3
    assert (low.precision, low.loop.scaling) == ("bf16", "")


@needs("megatron.training")
def test_megatron_lm(tmp_path):
    assert run(tmp_path, "megatron_lm", printed("Megatron", FP16)).split("\n")[-2] == "True False 64.0"
    assert run(tmp_path, "megatron_lm", printed("Megatron", BF16)).split("\n")[-2] == "False True 4294967296"


@needs("torchtitan")
def test_torchtitan(tmp_path):
    said = run(tmp_path, "torchtitan", printed("TorchTitan", BF16))
    assert set(said.split("\n")[-7:-1]) == {"torch.bfloat16 torch.float32"}
    run(tmp_path, "torchtitan", "--training.mixed_precision_param float16", ends=(2,))  # it has no fp16


@needs("deepspeed")
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed(tmp_path, stage):
    def steps(line):
        return re.findall(r"^(\w+) at (.*)$", run(tmp_path, "deepspeed", line, stage), re.MULTILINE)

    assert steps('{"fp16": {"enabled": true}}') == [
        ("skipped", scale) for scale in ("65536.0", "65536.0", "32768.0")
    ]
    assert steps(printed("DeepSpeed", FP16)) == [("stepped", "64.0")] * 3
    assert steps(printed("DeepSpeed", BF16)) == [("stepped", "1.0")] * 3


@needs("deepspeed")
def test_deepspeeds_own_scale_is_seen_with_its_skips(tmp_path):
    alone, said = trained(tmp_path, "deepspeed", '{"fp16": {"enabled": true}}', "1")
    scales = [2.0**16, 2.0**16, 2.0**15, 2.0**14]
    assert [(event.step, event.before, event.after, event.skipped) for event in alone.loop.scales] == [
        (step, before, after, True) for step, (before, after) in enumerate(pairwise(scales))
    ]
    assert [float(scale) for scale in re.findall(r"^skipped at (.*)$", said, re.MULTILINE)] == scales[:-1]
    advised, _ = trained(tmp_path, "deepspeed", printed("DeepSpeed", FP16), "1")
    assert starts(advised)[1:] == ({"scaler 1": START}, 0, 3)
    assert advised.verdict.word in (Health.PARTLY_AUDITED, Health.UNKNOWN)  # what divides was not seen


@needs("deepspeed")
def test_buffers_of_a_gigabyte_stall_no_training(tmp_path):
    """ZeRO's third stage holds some, which are compared with FP32's."""
    report, said = trained(tmp_path, "deepspeed", printed("DeepSpeed", FP16), "3")
    assert len(re.findall(r"^stepped at 64.0$", said, re.MULTILINE)) == report.loop.steps == 3
