"""Predicted times on named GPUs: published peaks against arithmetic, the roofline against sums by hand, its scores."""

import csv
import dataclasses
import json
import statistics
import sys
import time
import types
from importlib.resources import files

import pytest
import torch
from bench_models import perceptron
from test_bench_plugin import TARGET
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ampcheck.bench import roofline, views
from ampcheck.bench.gpu_time import legend, rates, table, titles
from ampcheck.bench.ledger import Operation
from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench, Case, Time
from ampcheck.bench.roofline import calibration, constants, gpu, gpus, operation_time, step_time
from ampcheck.bench.running import energy, timing
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.predict import predict
from ampcheck.cli import main
from ampcheck.targets.spec import Target

CARDS = list(csv.DictReader(files("ampcheck.bench").joinpath("gpus.csv").read_text().splitlines()))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card["name"])
def test_published_peaks_are_units_times_clock(card):
    """Two facts of a datasheet that have to agree; Hopper's Tensor Cores run at a lower clock than the rest."""
    sm, clock = int(card["sm"]), float(card["clock_ghz"])
    slack = 0.08 if card["arch"] == "Hopper" or card["name"] == "b200" else 0.013
    assert 2 * sm * int(card["lanes"]) * clock / 1000 == pytest.approx(float(card["fp32_tflops"]), rel=slack)
    if card["half_tflops"]:
        assert sm * int(card["tensor_flop"]) * clock / 1000 == pytest.approx(
            float(card["half_tflops"]), rel=0.013
        )
    if card["tf32_tflops"]:
        assert float(card["tf32_tflops"]) <= float(card["half_tflops"])


def convolution(groups):
    def make():
        model = nn.Conv2d(64, 64, 3, padding=1, groups=groups)
        batch = torch.randn(2, 64, 8, 8, requires_grad=True)
        return Target("conv", model, [batch], lambda model, batch: model(batch).square().sum())

    return make


@pytest.mark.parametrize("groups", [1, 4, 64])
def test_gradients_of_a_grouped_convolution_cost_what_its_forward_does(groups):
    """torch's own counter says 65 times as much for 64 groups."""
    found = predict(convolution(groups), precision("fp32")).work
    by_hand = 2 * 2 * 64 * 64 * (64 // groups) * 9 * 8 * 8 // 64 * 64 // 64
    forward = sum(op.flops for op in found if op.op == "convolution")
    backward = sum(op.flops for op in found if op.op == "convolution_backward")
    assert forward == by_hand
    # The batch of a target asks for no gradient, so that only the weight's is computed.
    assert backward in {forward, 2 * forward}


def test_the_counted_operations_are_torchs_where_torch_counts_right():
    def make():
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 144, 4)
        )
        return Target(
            "net", model, [torch.randn(2, 3, 16, 16)], lambda model, batch: model(batch).square().sum()
        )

    target = make()
    with FlopCounterMode(display=False) as counter:
        target.loss(target.model, target.batch(0)).backward()
    assert predict(make, precision("fp32")).flops == counter.get_total_flops()


def product(dtype="float16", size=8192):
    flops, moved = 2 * size**3, 3 * size**2 * (2 if dtype == "float16" else 4)
    sizes = (size, size, size)
    return Operation("mm", "", "forward", dtype, sizes, 1, flops, moved, product=(1, *sizes), kernels=1)


def test_a_large_product_takes_its_multiplications_at_the_peak():
    card, known = gpu("a100-80g"), constants()
    for dtype, tf32, peak, share in (
        ("float16", False, 312e12, known.tensor_product),
        ("float32", False, 19.5e12, known.product),
        ("float32", True, 156e12, known.tensor_product),
    ):
        seconds, bound = operation_time(product(dtype), card, known, tf32=tf32)
        assert bound == "compute"
        assert seconds == pytest.approx(2 * 8192**3 / (peak * share) + known.kernel * 1e-6)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(4, 8, 3, padding=1), True),
        (nn.Conv2d(4, 8, 3, stride=2), False),
        (nn.Conv2d(4, 8, 3, dilation=2), False),
        (nn.Conv2d(4, 8, 3, groups=2), False),
        (nn.Conv2d(4, 8, 1), False),
        (nn.ConvTranspose2d(4, 8, 3), False),
    ],
    ids=str,
)
def test_winograds_algorithm_is_for_3x3_without_stride(layer, expected):
    batch = torch.randn(2, 4, 16, 16)
    target = Target("conv", layer, [batch], lambda model, batch: model(batch).square().sum())
    found = [op for op in predict(lambda: target, precision("fp32")).work if op.op.startswith("convolution")]
    assert [op.winograd for op in found] == [expected] * 2, "forward and backward"


def test_fp32_images_run_above_the_peak_and_half_precision_does_not():
    """Published: VGG16, 30.9 GFLOP an image, runs at 511 images/s in FP32 on a Titan V of 14.9 TFLOP/s."""
    card, known = gpu("titan-v"), constants()
    assert 1.05 * card.fp32 < 511 * 30.9e9
    assert 1 < known.winograd <= 4, "four multiplications of sixteen"
    conv = dataclasses.replace(product("float32"), op="convolution", product=(1, 8, 8, 8), bytes=0)
    images = dataclasses.replace(conv, winograd=True)
    start = known.kernel * 1e-6
    plain, fewer = (operation_time(op, card, known)[0] - start for op in (conv, images))
    assert plain / fewer == pytest.approx(known.winograd)
    assert conv.flops / fewer > card.fp32 > conv.flops / plain
    low = [dataclasses.replace(op, dtype="float16") for op in (conv, images)]
    assert len({operation_time(op, card, known) for op in low}) == 1


def test_an_addition_takes_its_bytes_at_the_bandwidth_in_every_precision():
    known = constants()
    add = Operation("add", "", "forward", "float16", (), 1, 0, 3_000_000_000, kernels=1, fusable=True)
    seconds, bound = operation_time(add, gpu("t4"), known)
    assert bound == "memory"
    assert seconds == pytest.approx(3e9 / (320e9 * known.bandwidth) + known.kernel * 1e-6)
    chained = dataclasses.replace(add, chained=1_000_000_000)
    fused, _ = operation_time(chained, gpu("t4"), known, fused=True)
    assert fused == pytest.approx(2e9 / (320e9 * known.bandwidth)), (
        "one kernel less, and one input is not read"
    )


def test_many_small_operations_are_bound_by_launches():
    small = Operation("add", "", "forward", "float32", (), 1000, 0, 1000 * 4096, kernels=1000)
    found = step_time([small], gpu("h100"), constants())
    assert found.bound == "launches"
    assert found.seconds == pytest.approx(1000 * constants().launch * 1e-6)


def test_bf16_has_no_tensor_cores_before_ampere():
    known = constants()
    for name, faster in (("t4", False), ("a100-80g", True)):
        low, _ = operation_time(product("bfloat16"), gpu(name), known)
        full, _ = operation_time(product("float32"), gpu(name), known)
        assert (low < 0.9 * full) is faster


def test_the_recorded_scores_beat_the_baselines_and_say_what_was_left_out():
    scores = calibration()["scores"]
    family, constant = scores["leave one family out"], scores["one constant"]
    assert scores["rows"] >= 200
    assert scores["leave one GPU out"]["median"] <= 0.15
    assert scores["leave one GPU out"]["sign"] >= 0.95
    assert family["median"] < min(constant["median"], scores["median by mode and FP32 or TF32"]["median"])
    assert family["covered"] >= 0.8
    assert min(family["sign"], family["any_sign"]) >= 0.95
    assert len(calibration()["constants"]) == len(dataclasses.fields(roofline.Constants)) <= 13


def benched(gpus=("t4", "a100-80g"), **more):
    def make(size, seed):
        model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])
        return Target(
            "wide", model, [torch.randn(size or 512, 1024)], lambda m, b: m(b).float().square().mean()
        )

    request = Request(("fp32", "amp", "bf16"), ("memory",), gpus=gpus, **more)
    return Bencher(make, request).run(Bench("wide"))


def test_a_bench_predicts_every_precision_on_every_gpu():
    bench = benched()
    (case,) = bench.cases
    found = {(line[0], line[1]): line for line in table(bench, case)}
    assert list(found) == [
        ("t4", "fp32"), ("t4", "amp"), ("a100-80g", "fp32"), ("a100-80g", "amp"), ("a100-80g", "bf16"),
    ]  # fmt: skip
    assert case.row("bf16").message == "no time is predicted on t4: it has no bf16 units"
    amp = case.row("amp")
    factor, low, high = rates(case, amp, amp.gpu_times[1])
    assert low <= factor <= high
    assert factor > 1
    assert all("predicted, not measured" in legend(bench)[0] for _ in "a")
    assert legend(Bench("x", (Case(1),))) == ()
    assert amp.gpu_times[0].compiled <= amp.gpu_times[0].seconds
    assert amp.time is None, "nothing was measured"


def test_recurrent_layers_are_not_predicted_and_it_is_said():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8)

        def forward(self, x):
            return self.lstm(x)[0]

    def make(size, seed):
        return Target("lstm", Net(), [torch.randn(4, 2, 8)], lambda m, b: m(b).float().square().mean())

    case = Bencher(make, Request(("amp",), ("memory",), gpus=("t4",))).run(Bench("lstm")).cases[0]
    assert all(not row.gpu_times for row in case.rows)
    assert all("no time is predicted" in row.message for row in case.rows)


def test_the_command_line_labels_what_is_predicted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(TARGET)
    words = ["bench", "net.py", "--parts", "memory", "--precisions", "fp32,amp", "--gpu", "h100,t4"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "predicted on GPUs that are not here:" in out
    rows = json.loads((tmp_path / "reports" / "net.json").read_text())["cases"][0]["rows"]
    assert [time["gpu"] for time in rows[1]["gpu_times"]] == ["h100", "t4"]
    for name in ("net.md", "net.html"):
        text = (tmp_path / "reports" / name).read_text()
        assert "Time on GPUs, predicted" in text
        assert "predicted, not measured" in text
    with pytest.raises(SystemExit) as left:
        main([*words[:-1], "voodoo2"])
    assert left.value.code == 2
    assert set(gpus()) >= {"a100-80g", "h100", "rtx4090", "t4"}


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g"), ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"), ("Tesla V100-SXM2-16GB", "v100-sxm"), ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("Tesla T4", "t4"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"), ("Quadro RTX 6000", "rtx6000"), ("NVIDIA A10", "a10"),
        ("NVIDIA L40S", "l40s"), ("NVIDIA TITAN V", "titan-v"), ("NVIDIA A10G", None), ("CPU", None),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_name_that_torch_gives_it(device, name):
    card = roofline.named_by(device)
    assert (card and card.name) == name


def test_measured_times_stand_beside_the_predicted_ones_of_the_same_gpu():
    bench = benched()
    (case,) = bench.cases
    rows = tuple(dataclasses.replace(row, time=Time((0.0125,) * 4, 1, joules=2.5)) for row in case.rows)
    here = dataclasses.replace(
        bench, cases=(dataclasses.replace(case, rows=rows),), environment={"device": "NVIDIA A100-SXM4-80GB"}
    )
    at = titles(here).index("measured here, ms")
    found = {line[:2]: line[at] for line in table(here, here.cases[0])}
    assert found[("a100-80g", "amp")] == "12.5"
    assert found[("t4", "amp")] == "–"
    elsewhere = dataclasses.replace(here, environment={"device": "NVIDIA L4"})
    assert "measured here, ms" not in titles(elsewhere)
    assert "measured here, ms" not in titles(bench)


def test_the_share_of_the_peak_is_multiplications_by_time_and_peak():
    """MFU is worked out by hand: FLOPs of the step over seconds, over the datasheet's peak."""
    bench = benched()
    (case,) = bench.cases
    row = dataclasses.replace(case.row("amp"), time=Time((0.01,) * 4, 1, joules=2.5))
    here = dataclasses.replace(
        bench, cases=(dataclasses.replace(case, rows=(case.rows[0], row)),),
        environment={"device": "NVIDIA A100-SXM4-80GB"}, epoch=512_000, price=3.6,
    )  # fmt: skip
    record = views.frame(here).iloc[1]
    by_hand = 2 * 3 * 4 * 512 * 1024**2 - 2 * 512 * 1024**2  # the first layer's input asks for no gradient
    assert record.mfu == pytest.approx(by_hand / 0.01 / 312e12, rel=1e-3)
    assert record.watts == pytest.approx(250)
    assert record.joules_per_step == 2.5
    assert record.epoch_s == pytest.approx(10)
    assert record.epoch_price == pytest.approx(0.01)


def nvml(counts):
    """Return NVIDIA's library as far as the bench asks it: a GPU that takes 300 W, and may not count its energy."""
    error = type("NVMLError", (Exception,), {})

    def energy_of(handle):
        assert handle == "GPU-1-2-3"
        if not counts:
            raise error
        return round(300_000 * time.perf_counter())

    return types.SimpleNamespace(
        NVMLError=error, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetTotalEnergyConsumption=energy_of,
    )  # fmt: skip


@pytest.mark.parametrize("counts", [True, False])
def test_energy_is_read_between_the_ends_of_a_block(counts, monkeypatch):
    """The library is stood in for: no GPU has confirmed it.

    Others share the processors, so one of five tries has to agree; energy read elsewhere would fail them all.
    """
    monkeypatch.setitem(sys.modules, "pynvml", nvml(counts))
    properties = types.SimpleNamespace(uuid="1-2-3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    cuda = torch.device("cuda")
    monkeypatch.setattr(timing, "joules", lambda _: energy.joules(cuda))
    for _ in range(5):
        arm = Arm(perceptron(), precision("fp32"))
        lane = timing.Lane("fp32", arm.train, arm)
        timing.interleave([lane], 0.1)
        found = lane.result()
        assert (found.joules is not None) == counts
        assert bool(energy.uncounted(cuda)) != counts
        if not counts or found.watts == pytest.approx(300, rel=0.05):
            break
    if counts:
        assert found.watts == pytest.approx(300, rel=0.05)
        assert found.joules == pytest.approx(300 * statistics.fmean(found.samples), rel=0.05)


def test_without_the_library_or_a_gpu_there_is_no_energy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy.joules(torch.device("cuda")) is None
    assert energy.uncounted(torch.device("cuda")).endswith("pip install 'ampcheck[gpu]'")
    assert energy.uncounted(torch.device("cpu")) == ""
    assert energy.joules(torch.device("cpu")) is None
    assert Time((1.0,), 1).watts is None
