"""A session over a training loop: what it costs between recorded steps, what it leaves behind, its scales."""

import sys
import threading
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from loop_scripts import TUTORIALS, data, half, loss_fn, net
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.diagnose.subjects import models
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule


def trained(steps=6, dtype=None, seed=3, init_scale=None):
    """Train a little; return the losses and the weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale or 1.0, enabled=init_scale is not None)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return a[0] == b[0] and all(torch.equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_training_is_the_same_to_the_last_bit(dtype):
    bare = trained(dtype=dtype, init_scale=2.0**12)
    drawn = torch.rand(2)
    session = Session(Schedule(first=1, every=2))
    with session.watching():
        watched = trained(dtype=dtype, init_scale=2.0**12)
        assert torch.equal(torch.rand(2), drawn)
    assert session.watcher.tape.recorded
    assert same(bare, watched)


def names():
    """Everything of torch that a session may replace."""
    owners = [
        torch,
        torch.cuda,
        torch.accelerator,
        torch.autograd,
        torch.Tensor,
        torch.nn.Module,
        torch.nn.utils,
    ]
    owners += [
        torch.optim.Optimizer,
        torch.amp.GradScaler,
        torch.amp.autocast_mode.autocast,
        torch.nn.utils.clip_grad,
    ]
    owners += [
        torch.optim.lr_scheduler.StepLR,
        torch.optim.lr_scheduler.LRScheduler,
        torch.utils._device.DeviceContext,
    ]
    held = {(owner.__name__, name): id(value) for owner in owners for name, value in vars(owner).items()}
    modules = torch.nn.modules.module
    return held, dict(modules._global_forward_pre_hooks), dict(modules._global_forward_hooks)


@pytest.mark.parametrize("what_if", ["", "bf16"])
def test_nothing_stays_behind_however_it_ends(what_if):
    trained(1)
    before = names()

    def fails():
        model = net()
        for x, _ in data():
            model(x).sum().backward()
            model(x)
            raise ValueError("the script's own")

    session = Session(Schedule(), as_cuda=True, what_if=what_if)
    with pytest.raises(ValueError, match="own"), session.watching():
        fails()
    assert names() == before
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.tensor(1.0).to("cpu") == 1


class Around(torch.optim.SGD):
    """An optimizer that steps another one."""

    def step(self, closure=None):
        self.inner.step()


def test_nothing_stays_behind_of_an_optimizer_inside_another_whose_weights_are_kept_in_half_precision():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = Around(model.parameters(), lr=0.1)
    optimizer.inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    session = Session(Schedule())
    with session.watching():
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(2, 8)).square().mean().backward()
            optimizer.step()
            model.load_state_dict({name: held.half().float() for name, held in model.state_dict().items()})
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert {loss.name for loss in session.watcher.updates.losses} == {"model.weight", "model.bias"}


def frames_of_ours(run):
    """Count the calls of functions of this package while something runs."""
    package, calls = sys.modules["ampcheck"].__path__[0], []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    threading.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return len(calls)


def calls_in_an_unrecorded_step(layers):
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()

    session = Session(Schedule(first=1, every=0))
    with session.watching():
        step()
        step()
        calls = frames_of_ours(step)
    assert session.watcher.steps == 3
    return calls


def test_between_recorded_steps_no_operation_and_no_module_costs_a_call():
    few = calls_in_an_unrecorded_step(2)
    assert few == calls_in_an_unrecorded_step(40)
    assert few < 90  # a step's worth of events: zero_grad, backward, step


class TakesScale(torch.optim.Optimizer):
    """An optimizer that, as a fused one does, skips by itself: nothing of its step waits for the device."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad)


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.overloadpacket] += not torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        return func(*args, **(kwargs or {}))


def operations_of_scaled_steps(layers, session):
    """Return what 5 steps run on a device whose numbers cannot be read, and the watcher right after them."""
    model = nn.Sequential(*[nn.Linear(4, 4, device="meta") for _ in range(layers)])
    optimizer, scaler = TakesScale(model.parameters()), torch.amp.GradScaler("cpu")
    scaler._device = "meta"  # torch allows a live scaler on devices that it has computed on
    with session.watching() if session else nullcontext():
        with Operations() as counted:
            for _ in range(5):
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(2, 4, device="meta")).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
        broken = bool(session and session.watcher.broken)
    return counted.seen, broken


def test_between_recorded_steps_nothing_waits_for_the_device():
    """On "meta" a tensor that is read raises: watching reads none until it ends, and adds no work by layer."""
    added = []
    for layers in (1, 20):
        session = Session(Schedule(steps=frozenset()))
        bare, _ = operations_of_scaled_steps(layers, None)
        watched, broken = operations_of_scaled_steps(layers, session)
        assert not broken
        assert session.watcher.steps == 5
        added.append(watched - bare)
        assert any(
            "Cannot copy out of meta tensor" in what for what in session.watcher.not_seen
        )  # at the end
    # What is put aside for each update is computed out of sight of the script's own modes.
    assert not any(added[0].values())
    assert not any(added[1].values())


def test_skips_name_the_parameter_and_the_operation_they_come_from():
    def overflows():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24)
        for x, y in data(14):
            optimizer.zero_grad()
            with half():
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    session = Session(Schedule(first=1, every=0), as_cuda=True)
    with session.watching():
        overflows()
    loop = session.report("loop").loop
    skips = [event for event in loop.scales if event.skipped]
    assert [event.step for event in skips] == list(range(len(skips)))
    assert skips
    assert [event.before for event in skips] == [2.0 ** (24 - i) for i in range(len(skips))]
    assert all(event.after == event.before / 2 for event in skips)
    assert loop.first_scales == {"scaler 1": 2.0**24}
    assert {event.cause.optimizer for event in skips} == {"optimizer 1"}
    assert skips[0].cause.parameter == "model.2.bias"  # the first that the backward reaches
    assert skips[0].cause.layer == "model.2"
    assert skips[0].cause.op  # recorded
    assert skips[0].cause.file.endswith("loop_scripts.py") or skips[0].cause.file.endswith("test_session.py")
    assert skips[1].cause.op == ""  # not recorded, and so not known


def spoils(parameter):
    """Make a parameter's gradients infinite from now on."""
    return parameter.register_hook(lambda grad: torch.full_like(grad, float("inf")))


def test_of_several_optimizers_the_one_that_was_skipped_is_named():
    def trains():
        a, b = net(8), net(8)
        first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
        for number, (x, y) in enumerate(data(6)):
            first.zero_grad()
            second.zero_grad()
            handle = spoils(b[0].weight) if number in {2, 3} else None
            with half():
                loss = loss_fn(a(x) + b(x), y)
            scaler.scale(loss).backward()
            scaler.step(first)
            scaler.step(second)
            scaler.update()
            if handle is not None:
                handle.remove()

    session = Session(Schedule(first=0, every=0, steps=frozenset()), as_cuda=True)
    with session.watching():
        trains()
    loop = session.report("loop").loop
    skips = [event for event in loop.scales if event.skipped]
    assert [event.before for event in skips] == [4.0, 2.0]
    assert [event.step // 2 for event in skips] == [2, 3]  # two steps in each iteration
    assert {(event.cause.optimizer, event.cause.others) for event in skips} == {("optimizer 2", 0)}
    assert loop.settled("scaler 1") == 0  # the first was not skipped
    assert loop.steps == 12


@pytest.mark.parametrize("fused", [False, True])
def test_of_an_accumulation_one_bad_part_skips_the_whole_step(fused):
    def trains():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
        for number, (x, y) in enumerate(data(16)):
            handle = spoils(model[0].bias) if number in {1, 9} else None
            with half():
                loss = loss_fn(model(x), y) / 4
            scaler.scale(loss).backward()
            if handle is not None:
                handle.remove()
            if number % 4 == 3:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    session = Session(Schedule(steps=frozenset({0})), as_cuda=True)
    with session.watching():
        trains()
    loop = session.report("loop").loop
    assert loop.steps == 4
    told = [(event.step, event.cause.parameter, event.cause.others) for event in loop.scales if event.skipped]
    assert told[0] == (0, "model.0.bias", 0)
    assert [(step, others) for step, _, others in told] == [(0, 0), (2, 0)]
    assert loop.settled("scaler 1") == 1


def test_a_fused_optimizer_that_skips_inside_is_seen_to_skip():
    def overflows():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
        for x, y in data(3):
            optimizer.zero_grad()
            with half():
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    session = Session(Schedule(first=1, every=0), as_cuda=True)
    with session.watching():
        overflows()
    skips = [event for event in session.report("loop").loop.scales if event.skipped]
    assert [event.step for event in skips] == [0, 1, 2]
    assert skips[2].cause.parameter == "model.2.bias"


def test_what_if_leaves_the_script_in_fp32_where_it_is_not_recorded():
    bare = trained(8)
    session = Session(Schedule(first=0, every=0, steps=frozenset({7})), what_if="fp16")
    with session.watching():
        watched = trained(8)
    assert watched[0][:7] == bare[0][:7]
    assert watched[0][7] == pytest.approx(bare[0][7], rel=5e-3)
    assert watched[0][7] != bare[0][7]  # it did run in fp16
    for name, value in bare[1].items():  # and FP32's gradients and averages were given back
        torch.testing.assert_close(watched[1][name], value, rtol=1e-4, atol=1e-6)
    report = session.report("script")
    assert report.precision == "fp16"
    assert report.log2_scale == 16
    assert not report.outcomes["settled"].harmed


def test_the_report_of_a_loop_that_is_stood_in_for_says_so():
    session = Session(Schedule(first=1, every=0), as_cuda=True)
    with session.watching():
        TUTORIALS["basic"]()
    report = session.report("loop")
    assert any("it ran on the CPU" in note for note in report.notes)
    assert report.environment["casting"] == "CUDA's rules on CPU tensors"
    losses = [site.dtype for site in report.low.sites if site.op == "nll_loss_forward"]
    linear = [site.dtype for site in report.low.sites if site.op == "addmm"]
    assert set(linear) == {"float16"}
    assert set(losses) == {"float32"}


class ActorCritic(nn.Module):
    """A model without a forward: its other methods call its parts."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(2, 3), nn.Linear(2, 1)
        self.log_std = nn.Parameter(torch.zeros(3))
        self.sizes = self.critic(torch.ones(1, 2)).shape  # a part run while the model is being made

    def act(self, x):
        return self.actor(x) * self.log_std.exp(), self.critic(x)


def test_a_model_that_is_called_by_another_method_is_named_by_its_class():
    session = Session(Schedule(first=2, every=0))
    with session.watching():
        agent = ActorCritic()
        optimizer = torch.optim.SGD(agent.parameters(), lr=0.01)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                action, value = agent.act(torch.ones(4, 2))
            optimizer.zero_grad()
            (action.square().mean() + value.square().mean()).backward()
            optimizer.step()
    report = session.report("loop")
    assert models(report) == ["ActorCritic"]
    gradients = {f"{site.module}.{site.slot}" for site in report.low.sites if "param_grad" in site.slot}
    assert gradients == {
        "agent.param_grad[log_std]",
        *(f"agent.{part}.param_grad[{name}]" for part in ("actor", "critic") for name in ("weight", "bias")),
    }
    assert not any("never called" in text for text in report.low.not_audited)
