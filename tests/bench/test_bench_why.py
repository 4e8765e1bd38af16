"""Why low precision does not pay: each rule where it speaks, its evidence counted by hand, and where it is silent."""

import pytest
import torch
from torch import nn

from ampcheck.bench.ledger import Operation
from ampcheck.bench.result import Case
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.predict import predict
from ampcheck.bench.running.settings import put
from ampcheck.bench.why import CAST_SHARE, FP32_SHARE, GROUP, LAUNCH_BYTES, SMALL_SHARE, TILE, reasons
from ampcheck.targets.spec import Target
from ampcheck.values.wording import percent, size


def _square(model, batch):
    return model(batch).float().square().mean()


def told(build, shape, case=None):
    """Return the reasons for a step in mixed precision by their code; no number of it is ever computed."""

    def make():
        return put(Target("t", build(), [torch.randn(shape)], _square), case or Case(0))

    found = predict(make, precision("amp"))
    assert not found.note, "it ran on tensors without numbers"
    return {reason.code: reason for reason in reasons(found.operations)}


def chain(width, depth):
    return lambda: nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])


def test_a_model_that_suits_a_gpu_has_no_reason():
    """Wide, deep, large batch: 16384 rows of 512 in 48 layers; every operation moves tens of megabytes."""
    assert told(chain(512, 48), (16384, 512)) == {}


def test_nothing_is_said_of_nothing():
    assert reasons(()) == ()


def test_sizes_that_miss_the_group_of_eight_are_named_with_their_share():
    found = told(lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 30)), (128, 64))["shapes"]
    share = 30 / (64 + 30)  # of the multiplications; rows and inner size are the same
    assert (
        found.message == f"{percent(share)} of the multiplications have a size that is no multiple of {GROUP}"
    )
    assert found.evidence == "1 (128x30x64)"
    assert "shapes" not in told(lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32)), (128, 64))


def test_odd_channels_of_convolutions_and_odd_batches_count_too():
    assert told(lambda: nn.Conv2d(3, 16, 3), (8, 3, 32, 32))["shapes"].evidence == "(root) (16x3)"
    assert told(chain(64, 1), (127, 64))["shapes"].evidence == "0 (127x64x64)"


def test_images_that_are_not_channels_last_are_named():
    def build():
        return nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 16, 3))

    found = told(build, (8, 16, 32, 32))["channels_last"]
    assert found.message.startswith("100 % of all computation is convolutions of images")
    assert found.evidence == "0 (32x16), 1 (16x32)"
    assert "memory_format=torch.channels_last" in found.gain
    assert "channels_last" not in told(build, (8, 16, 32, 32), Case(0, channels_last=True))
    assert "channels_last" not in told(chain(64, 2), (128, 64)), "there are no images"


def test_products_of_few_rows_are_named():
    found = told(chain(64, 2), (TILE - 8, 64))["batch"]
    assert found.message == f"100 % of the forward's computation is matrix products of fewer than {TILE} rows"
    assert found.evidence == f"0 ({TILE - 8}x64x64), 1 ({TILE - 8}x64x64)"
    assert "batch" not in told(chain(64, 2), (TILE, 64))


def test_half_of_the_computation_is_where_a_small_batch_begins_to_count():
    def build():
        return nn.ModuleDict({"wide": nn.Linear(64, 64), "thin": nn.Linear(64, 64)})

    def loss(model, batch):
        return model["wide"](batch).float().mean() + model["thin"](batch[: TILE // 2]).float().mean()

    def told_of(rows):
        found = predict(lambda: Target("t", build(), [torch.randn(rows, 64)], loss), precision("amp"))
        return [reason for reason in reasons(found.operations) if reason.code == "batch"]

    assert SMALL_SHARE == 0.5
    assert told_of(TILE) == [], "a third"
    assert [reason.evidence for reason in told_of(TILE // 2)] == ["wide (32x64x64), thin (32x64x64)"]


#: Bytes that a step of one linear layer of 64 by 64 and a layer norm moves over 256 rows, by hand.
ROWS, WIDTH = 256, 64
CELLS = ROWS * WIDTH
CASTS = {
    "input to half": 6 * CELLS,
    "weight to half": 6 * WIDTH * WIDTH,
    "bias to half": 6 * WIDTH,
    "product to FP32, for the norm": 6 * CELLS,
}
IN_HALF = {"product": 2 * (2 * CELLS + WIDTH * WIDTH + WIDTH)}
IN_FP32 = {
    "norm": 4 * (2 * CELLS + 2 * WIDTH + 2 * ROWS),  # with its weight and bias, mean and deviation
    "square": 4 * 2 * CELLS,
    "mean": 4 * (CELLS + 1),
}
TOTAL = sum(CASTS.values()) + sum(IN_HALF.values()) + sum(IN_FP32.values())


def normed():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def test_bytes_moved_by_casts_are_what_a_person_counts():
    found = told(normed, (ROWS, WIDTH))["casts"]
    share = sum(CASTS.values()) / TOTAL
    assert share > CAST_SHARE
    assert found.message == f"{percent(share)} of all bytes are moved by casts"
    assert found.gain.startswith(f"at most {1 / (1 - share):.2f} times as fast without them")
    heaviest = size(6 * CELLS)  # of the norm's input and of the linear layer's, one each
    assert heaviest in found.evidence


def test_few_casts_are_not_worth_a_line():
    """64 layers of 128 over 4096 rows: the casts of weights are 6·128², the products 4·128·4096 bytes each."""
    assert "casts" not in told(chain(128, 64), (4096, 128))


def test_bytes_moved_in_fp32_are_what_a_person_counts():
    found = told(normed, (ROWS, WIDTH))["fp32"]
    share = sum(IN_FP32.values()) / TOTAL
    assert share > FP32_SHARE
    assert found.message == f"{percent(share)} of all bytes are moved by operations that stay in FP32"
    assert found.evidence == "1 (native_layer_norm), (root) (pow)"
    assert found.gain.startswith(
        f"low precision can halve only the rest: at most {2 / (1 + share):.2f} times"
    )
    assert "fp32" not in told(chain(128, 64), (4096, 128))


def test_a_step_of_tiny_operations_is_launch_bound():
    found = told(normed, (ROWS, WIDTH))["launch-bound"]
    calls = len(CASTS) + len(IN_HALF) + len(IN_FP32)
    assert found.evidence == (
        f"{calls} operations of {calls} move less than {size(LAUNCH_BYTES)}, {size(TOTAL // calls)} on average"
    )
    assert "launch-bound" not in told(chain(512, 4), (16384, 512))


@pytest.mark.parametrize(("moved", "speaks"), [(LAUNCH_BYTES - 1, True), (LAUNCH_BYTES, False)])
def test_where_launching_begins_to_count(moved, speaks):
    operations = [Operation("relu", "a", "forward", "float16", (), 1, 0, moved)]
    assert any(reason.code == "launch-bound" for reason in reasons(operations)) == speaks


def test_names_of_layers_are_shown_as_they_are_seen():
    product = Operation("mm", "a\x1b[31m\u202e", "forward", "float16", (64, 7, 64), 1, 100, 10**9)
    shown = next(reason for reason in reasons([product]) if reason.code == "shapes")
    assert "\x1b" not in shown.evidence
    assert "\u202e" not in shown.evidence
