"""Parameters that are spread over ranks, or of a class of someone's own: watched loops go on bit for bit."""

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import ampcheck
from ampcheck.run.session import Session
from ampcheck.run.wishes import Wishes
from ampcheck.values.loop import SPOILT, Kind
from ampcheck.values.settings import Schedule

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")
STEPS = 4


@pytest.fixture(scope="module")
def mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def net(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    return (
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}) if mesh else model
    )


def train(model, dtype, scaled):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    by = 2.0**10 if scaled else 1.0  # by hand: torch's own scaler does not take DTensors
    torch.manual_seed(1)
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            out = model(torch.randn(6, 8))
        loss = out.float().square().mean()
        optimizer.zero_grad()
        (loss * by).backward()
        for parameter in model.parameters():
            parameter.grad.div_(by)
        optimizer.step()
    return [part.detach().clone() for p in model.parameters() for part in [getattr(p, "_local_tensor", p)]]


@pytest.mark.parametrize(
    ("dtype", "scaled", "what_if"),
    [(torch.bfloat16, False, ""), (torch.float16, True, ""), (None, False, "bf16"), (None, False, "fp16")],
)
def test_a_loop_over_dtensors_goes_on_bit_for_bit(mesh, dtype, scaled, what_if):
    bare = train(net(mesh), dtype, scaled)
    with ampcheck.watch(what_if=what_if, first=STEPS) as watching:
        watched = train(net(mesh), dtype, scaled)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    report = watching.report()
    seen = {site.module for site in report.low.sites if site.slot.startswith("param_grad")}
    assert {name.rpartition(".")[2] for name in seen} >= {"0", "2", "4"}
    assert not [why for why in report.low.not_audited if "internal" in why or "abandoned" in why]


def test_weights_in_half_precision_without_autocast_go_on_bit_for_bit(mesh):
    def trained():
        model = net(mesh).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
        torch.manual_seed(1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(6, 8).bfloat16()).float().square().mean().backward()
            optimizer.step()
        held = [*model.parameters(), *(one for state in optimizer.state.values() for one in state.values())]
        return [getattr(one, "_local_tensor", one).detach().clone() for one in held]

    bare = trained()
    with ampcheck.watch(first=STEPS) as watching:
        watched = trained()
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    report = watching.report()
    assert report.loop.recorded == tuple(range(STEPS))
    assert not [why for why in report.low.not_audited if "kept from before" in why]
    assert {"bfloat16"} == {site.dtype for site in report.low.sites if site.slot.startswith("param_grad")}
    assert not [why for why in report.low.not_audited if "internal" in why or "abandoned" in why]


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_scale_by_hand_that_falls_goes_on_bit_for_bit_and_is_known(mesh, spoilt):
    """Whether weights have become infinite is then asked of each rank's part: torch would crash at the whole."""
    boom, steps = 2, 6

    def trained():
        model, by = net(mesh), 2.0**14
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
        torch.manual_seed(1)
        for step in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = model(torch.randn(6, 8) * (1e6 if step == boom else 1.0))
            (out.float().square().mean() * by).backward()
            grads = [getattr(one.grad, "_local_tensor", one.grad) for one in model.parameters()]
            if finite := all(bool(grad.isfinite().all()) for grad in grads):
                for parameter in model.parameters():
                    parameter.grad.div_(by)
            if finite or spoilt:
                optimizer.step()
            by = by if finite else by / 2
        return [getattr(one, "_local_tensor", one).detach().clone() for one in model.parameters()], by

    bare, last = trained()
    with ampcheck.watch() as watching:
        watched, again = trained()
    assert all(torch.allclose(a, b, 0.0, 0.0, equal_nan=True) for a, b in zip(bare, watched, strict=True))
    loop = watching.report().loop
    assert last == again
    assert [(one.step, one.before, one.after) for one in loop.scales][:1] == [(boom, 2.0**14, 2.0**13)]
    told = [event.name for one in loop.rounds for event in one if event.kind is Kind.GROWN]
    assert (SPOILT in told) is spoilt


def with_masters(mesh, by=2.0**10):
    """Train weights in half precision by masters of the script's own."""
    model = net(mesh).half()
    masters = [one.detach().float().requires_grad_() for one in model.parameters()]
    optimizer = torch.optim.SGD(masters, 0.5, foreach=False)
    torch.manual_seed(1)
    for _ in range(STEPS):
        model.zero_grad()
        (model(torch.randn(6, 8).half()).float().square().mean() * by).backward()
        for master, weight in zip(masters, model.parameters(), strict=True):
            master.grad = weight.grad.float() / by
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, model.parameters(), strict=True):
                weight.copy_(master)
    return [getattr(one, "_local_tensor", one).detach().clone() for one in model.parameters()]


def test_masters_of_weights_in_half_precision_are_told_by_each_ranks_part(mesh):
    bare = with_masters(mesh)
    reports = []
    for one in (mesh, None):
        session = Session(
            Schedule(first=STEPS), asked=Wishes(half=True)
        )  # as where a file names half precision
        with session.watching():
            watched = with_masters(one)
        assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
        reports.append(session.report("script.py"))
    for report in reports:
        assert report.loop.recorded == tuple(range(STEPS))
        assert [*report.loop.first_scales.values()] == [2.0**10]
        assert not [why for why in report.low.not_audited if "internal" in why or "abandoned" in why]
    # FP32 beside them has the weights of each step, as it has where nothing is spread.
    spread, whole = (report.outcomes["settled"].grad_error for report in reports)
    assert spread == pytest.approx(whole, rel=1e-3)
    assert whole < 0.01


@pytest.mark.parametrize("what_if", ["", "bf16"])
def test_a_loop_over_a_class_of_someones_own_goes_on_bit_for_bit_and_is_not_safe(what_if):
    def trained():
        torch.manual_seed(0)
        held = nn.Linear(8, 8)
        held.weight = nn.Parameter(TwoTensor(torch.randn(8, 8), torch.randn(8, 8)))
        optimizer = torch.optim.SGD(held.parameters(), 0.1, foreach=False)
        for _ in range(STEPS):
            loss = held(torch.randn(5, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [held.weight.a.detach().clone(), held.weight.b.detach().clone()]

    bare = trained()
    with ampcheck.watch(what_if=what_if, first=STEPS) as watching:
        watched = trained()
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert watching.report().verdict.word not in {"SAFE", "RISK"}
