"""Programs of others, unmodified: Ultralytics' console script, and Latte as diffusers has it."""

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ampcheck
from ampcheck.saved.report_json import read
from ampcheck.values.trace import Phase

TESTS = Path(__file__).parents[1]


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yolo")
    subprocess.run([sys.executable, TESTS / "helpers" / "yolo_data.py", folder / "data"], check=True)
    return folder


def yolo(folder, name, *watched):
    """Train a small detector by its own program; return the losses that it wrote down."""
    program = str(Path(sys.executable).with_name("yolo"))
    words = [
        "train",
        "model=yolo11n.yaml",
        f"data={folder}/data/data.yaml",
        "epochs=2",
        "imgsz=64",
        "batch=4",
    ]
    words += ["nbs=4", "workers=0", "plots=False", "device=cpu", f"project={folder}", f"name={name}"]
    paths = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH", "")]))
    settings = {"PYTHONPATH": paths, "YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "true"}
    subprocess.run(
        [*watched, program, *words],
        check=True,
        capture_output=True,
        cwd=folder,
        timeout=300,
        env=os.environ | settings,
    )
    with (folder / name / "results.csv").open() as file:
        return [{key: value for key, value in row.items() if key != "time"} for row in csv.DictReader(file)]


@needs("ultralytics")
def test_yolo_trains_as_alone(squares):
    report = squares / "plain.json"
    run = [sys.executable, "-m", "ampcheck", "run", "--first", "1", "--every", "4"]
    assert yolo(squares, "plain", *run, "--format", "json", "-o", str(report)) == yolo(squares, "alone")
    seen = read(report)
    assert (seen.precision, seen.loop.steps, seen.loop.recorded) == ("fp32", 6, (0, 4))


@needs("ultralytics")
def test_yolo_is_told_what_fp16_would_do(squares):
    report = squares / "report.json"
    run = [sys.executable, "-m", "ampcheck", "run", "--what-if", "fp16", "--first", "1", "--every", "4"]
    yolo(squares, "what_if", *run, "--format", "json", "-o", str(report))
    seen = read(report)
    assert (seen.precision, seen.loop.steps, seen.loop.recorded) == ("fp16", 6, (0, 2, 4))  # step 0 overflows
    from ultralytics import YOLO

    layers = YOLO("yolo11n.yaml").model.named_modules()
    convolutions = {f"m.{name}" for name, layer in layers if isinstance(layer, torch.nn.Conv2d)}
    found = {
        site.module for site in seen.low.sites if site.op == "convolution" and site.phase is Phase.FORWARD
    }
    assert convolutions - found <= {"m.model.23.dfl.conv"}
    assert found <= convolutions


def latte(*, checkpointed):
    from diffusers import LatteTransformer3DModel

    torch.manual_seed(0)
    shape = {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 2,
        "sample_size": 8,
        "patch_size": 2,
    }
    text = {"cross_attention_dim": 32, "caption_channels": 24, "attention_bias": True}
    norm = {
        "norm_type": "ada_norm_single",
        "norm_elementwise_affine": False,
        "activation_fn": "gelu-approximate",
    }
    model = LatteTransformer3DModel(in_channels=4, out_channels=8, video_length=4, **shape, **text, **norm)
    if checkpointed:
        model.enable_gradient_checkpointing()
    return model.train()


def denoised(*, checkpointed):
    """Train Latte to take noise away, with autocast and a scaler for a GPU; return the losses and the report."""
    with ampcheck.watch(as_cuda=True, every=2, first=1) as watching:
        model, losses = latte(checkpointed=checkpointed).cuda(), []
        optimizer, scaler = torch.optim.AdamW(model.parameters(), 1e-4), torch.amp.GradScaler("cuda")
        for _ in range(4):
            noise, words = torch.randn(1, 4, 4, 8, 8, device="cuda"), torch.randn(1, 5, 24, device="cuda")
            step = torch.randint(0, 1000, (1,), device="cuda")
            with torch.autocast("cuda", torch.float16):
                found = model(noise, encoder_hidden_states=words, timestep=step, return_dict=False)[0]
                loss = torch.nn.functional.mse_loss(found[:, :4].float(), noise)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses, watching.report()


def inside(report, phase):
    return {
        (site.module, site.op, site.slot, site.dtype): stats
        for site, stats in report.low.sites.items()
        if site.phase is phase and site.op and "transformer_blocks." in site.module
    }


@needs("diffusers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_latte_recomputes_its_blocks_and_no_number_changes():
    (kept, whole), (again, parts) = denoised(checkpointed=False), denoised(checkpointed=True)
    assert kept == again
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert inside(whole, phase)
        assert inside(parts, phase) == inside(whole, phase)
    assert not inside(whole, Phase.RECOMPUTE)
    recomputed = {place[:3] for place in inside(parts, Phase.RECOMPUTE)}
    assert recomputed == {place[:3] for place in inside(parts, Phase.FORWARD)}
    assert {"model.transformer_blocks.0.attn1", "model.temporal_transformer_blocks.1.ff.net.0"} <= {
        place[0] for place in recomputed
    }
    assert parts.precision == "fp16"
    assert parts.outcomes["settled"].grad_error < 0.01
    assert parts.findings == whole.findings
