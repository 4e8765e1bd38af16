"""Corrected lines hold what the script has: no names that it does not know, no line of a library's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from code_lines import line_of
from examples import clean
from torch import nn

from ampcheck.diagnose.rules.constants import rounded
from ampcheck.diagnose.rules.libraries import clipping_of_library
from ampcheck.diagnose.rules.makers import held_in_fp32
from ampcheck.diagnose.rules.optimizer_eps import LARGER_EPS
from ampcheck.diagnose.rules.scales_tried import predicted_scale
from ampcheck.diagnose.rules.updates import lost_update
from ampcheck.diagnose.subjects import models
from ampcheck.diagnose.verdict import judged_by_trace
from ampcheck.renderers import terminal
from ampcheck.renderers.drawing import cells, with_room
from ampcheck.run.session import Session
from ampcheck.values.formats import FP16
from ampcheck.values.maker import Maker
from ampcheck.values.outcome import Outcome
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import UpdateLoss


def found(train, **asked):
    session = Session(Schedule(first=1, every=100), **asked)
    with session.watching():
        torch.manual_seed(0)
        train()
    assert not session.watcher.broken, session.watcher.not_seen
    report = session.report("loop")
    return report, {finding.code: finding for finding in report.findings}


def halved(optimizer, dtype=torch.float16, **given):
    """Train weights that are held in half precision; most of them get a gradient whose square is zero in fp16."""
    net = nn.Linear(8, 4, bias=False).to(dtype)
    steps = optimizer(net.parameters(), **given)
    for _ in range(4):
        x = torch.ones(2, 8, dtype=dtype)
        x[:, 2:] = 1e-4
        steps.zero_grad()
        net(x).float().square().mean().backward()
        steps.step()


def test_an_eps_that_is_zero_in_fp16_is_told_of_at_the_line_of_the_step():
    _, told = found(lambda: halved(torch.optim.Adam, lr=1e-2))
    lost = told["AMP504"]
    assert "the optimizer's eps of 1e-08 is zero in fp16" in lost.message
    assert "Adam(..., eps=0.0001)" in lost.fix[0]
    assert lost.origin.file.endswith("test_advice_in_own_terms.py")
    assert lost.origin.line
    assert rounded(LARGER_EPS, FP16) == pytest.approx(LARGER_EPS, rel=1e-3)
    _, told = found(lambda: halved(torch.optim.Adam, lr=1e-2, eps=LARGER_EPS))
    assert "eps" not in told["AMP504"].message if "AMP504" in told else True


class Scaled(nn.Module):
    """Multiplies what a layer gives by a temperature of its own dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.body = nn.Linear(8, 4)
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=dtype))

    def forward(self, x):
        return self.body(x) * self.temperature


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [
        (torch.bfloat16, ("# {}, where net.temperature is made: dtype=torch.float32",)),
        (torch.float32, None),
    ],
)
def test_one_half_weight_among_others_is_named_where_it_is_made(dtype, fix):
    made = line_of(Scaled.__init__, "self.temperature")
    net = Scaled(dtype)
    steps = torch.optim.SGD(net.parameters(), lr=1e-4)

    def train():
        for _ in range(4):
            steps.zero_grad()
            net(torch.ones(2, 8)).square().mean().backward()
            steps.step()

    _, told = found(train)
    lost = told.get("AMP504")
    assert (lost is None) == (fix is None)
    if lost is not None:
        assert lost.fix == tuple(line.format(f"{lost.origin.file}:{made}") for line in fix)


def test_of_a_rounded_update_no_name_is_made_up():
    _, told = found(lambda: halved(torch.optim.SGD, torch.bfloat16, lr=1e-6))
    lost = told["AMP504"]
    assert "eps" not in lost.message
    assert all(line.startswith("#") for line in lost.fix)


def test_a_tensor_that_a_line_writes_is_told_of_once_at_that_line():
    lost = UpdateLoss("mean", 8, 8)
    twice = replace(clean(), updates=(lost, replace(lost, file="train.py", line=7)))
    assert [finding.origin.line for finding in lost_update(twice)] == [7]


def test_a_library_that_scales_the_loss_has_its_own_way_to_clip():
    shown = clipping_of_library("norm = nn.utils.clip_grad_norm_(net.parameters(), 2.0)", "accelerate")
    assert shown == ("accelerator.clip_grad_norm_(net.parameters(), 2.0)  # it unscales first",)
    assert clipping_of_library("clip_grad_norm_(net.parameters(), 2.0)", "somebody") == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mended", [False, True])
def test_in_fabric_the_line_that_is_printed_clips_what_is_unscaled(mended):
    fabric_of = pytest.importorskip("lightning.fabric")

    def trains():
        fabric = fabric_of.Fabric(accelerator="cuda", devices=1, precision="16-mixed")
        model = nn.Linear(8, 4)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 1e-3))
        names = {"fabric": fabric, "model": model, "optimizer": optimizer, "torch": torch}
        for _ in range(3):
            optimizer.zero_grad()
            fabric.backward(model(torch.randn(16, 8, device="cuda")).square().mean())
            if mended:
                exec(line, names)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    (line,) = clipping_of_library("clip_grad_norm_(model.parameters(), 1.0)", "fabric")
    report, told = found(trains, as_cuda=True)
    assert models(report) == ["Linear"]  # and not what Fabric puts around it
    assert ("AMP401" in told) is not mended
    assert mended or told["AMP401"].fix == (line,)


def branch(scale):
    """Train a part whose share of the loss is so small that it needs a scale."""
    wide, small = nn.Linear(8, 4).cuda(), nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD([*wide.parameters(), *small.parameters()], 1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=scale, growth_interval=1000)
    for _ in range(4):
        x = torch.randn(16, 8).cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = wide(x).float().square().mean() * 1e-8 + small(x).float().square().mean() * 1e-8
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_scale_that_was_not_tried_is_no_scale_that_does_not_heal():
    report, told = found(lambda: branch(2.0), as_cuda=True)
    lost = told["AMP201"]
    assert "no loss scale tried" not in lost.message
    assert "other parameter" in lost.message
    assert lost.origin.line
    power = int(lost.message.rpartition("init_scale=2.0**")[2])
    assert "AMP201" not in found(lambda: branch(2.0**power), as_cuda=True)[1]
    assert "no larger" in predicted_scale(report, Outcome(24))


def test_a_comment_without_room_goes_above_its_line_and_loses_nothing():
    line = "    scaler.unscale_(optimizer)  # so that the limit is compared with what it is meant for"
    shown = with_room(line, 50)
    assert all(cells(part) <= 50 for part in shown)
    assert shown[-1] == "    scaler.unscale_(optimizer)"
    assert " ".join(part.strip("# ") for part in shown[:-1]) == line.partition("# ")[2]
    assert with_room(line, 200) == [line]


def test_weights_are_many():
    report = judged_by_trace(replace(clean(), cast="weights"))
    assert " fp16 weights are " in f" {report.verdict.sentence} "


def test_of_a_loop_that_is_wrong_healthy_numbers_are_said_to_be_a_steps():
    report, _ = found(lambda: halved(torch.optim.Adam, lr=1e-2))
    shown = " ".join(terminal.render(report).split())
    assert "healthy" in shown
    assert "what is wrong lies outside of a step's gradients" in shown


@pytest.mark.parametrize(
    ("name", "made", "shown"),
    [
        ("model.seen", "seen", "model.seen"),
        ("server.weights.2.weight", "weights", "server.weights"),
        ("state.variance[3]", "variance", "state.variance"),
        ("model.seen", "another", "model"),
    ],
)
def test_what_is_to_be_made_in_fp32_is_called_by_its_own_name_and_not_by_its_modules(name, made, shown):
    report = SimpleNamespace(makers=(Maker(made, "train.py", 3),))
    where = f"# where {shown}" if made == "another" else f"# train.py:3, where {shown}"
    assert held_in_fp32(report, name, "model") == f"{where} is made: dtype=torch.float32"


def players(*, unscaled, direct=False):
    """Train two models by turns; the gradients of the second are clipped, the first may be stepped `direct`ly."""
    first, second = nn.Linear(8, 8).to("cuda"), nn.Linear(8, 8).to("cuda")
    first_steps = torch.optim.Adam(first.parameters())
    second_steps = torch.optim.Adam(second.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(4):
        with torch.autocast("cuda", dtype=torch.float16):
            wide, near = first(torch.ones(4, 8)).square().mean(), second(torch.ones(4, 8)).square().mean()
        first_steps.zero_grad()
        scaler.scale(wide).backward()
        if direct:
            first_steps.step()
        else:
            scaler.step(first_steps)
        second_steps.zero_grad()
        scaler.scale(near).backward()
        if unscaled:
            scaler.unscale_(second_steps)
        nn.utils.clip_grad_norm_(second.parameters(), 1.0)
        scaler.step(second_steps)
        scaler.update()


def test_of_two_optimizers_the_lines_of_the_one_that_is_clipped_are_printed():
    _, told = found(lambda: players(unscaled=False), as_cuda=True)
    assert [line.partition("  #")[0] for line in told["AMP401"].fix] == [
        "scaler.scale(near).backward()",
        "scaler.unscale_(second_steps)",
        "nn.utils.clip_grad_norm_(second.parameters(), 1.0)",
        "scaler.step(second_steps)",
    ]
    _, told = found(lambda: players(unscaled=True), as_cuda=True)  # as these lines say
    assert "AMP401" not in told


def test_an_optimizer_that_goes_past_the_scaler_is_stepped_by_it_where_it_is_stepped_now():
    _, told = found(lambda: players(unscaled=True, direct=True), as_cuda=True)
    assert told["AMP403"].origin.line == line_of(players, "first_steps.step()")
    assert told["AMP403"].fix == (
        "scaler.step(first_steps)  # here, in place of first_steps.step() and of a division before it",
        "scaler.update()  # once, after the last step",
    )
