"""`ampcheck.watch`: a loop of one's own goes on as without it, and nothing of the watch stays behind."""

import contextlib
import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
from builders import answer
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ampcheck
from ampcheck.saved.report_json import read
from ampcheck.values.findings import Severity
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health

OURS = str(Path(ampcheck.__file__).parent)


def made(depth=2, init_scale=2.0**16):
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(depth)]
    net = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(8, 4))
    return net, torch.optim.AdamW(net.parameters(), 1e-2), torch.amp.GradScaler("cpu", init_scale=init_scale)


def step(net, optimizer, scaler, dtype=torch.float16):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype):
        loss = nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def trained(watch=contextlib.nullcontext, steps=7, **kwargs):
    net, optimizer, scaler = made(**kwargs)
    with watch(net, optimizer, scaler) as watching:
        losses = [step(net, optimizer, scaler) for _ in range(steps)]
    return (losses, list(net.parameters()), torch.get_rng_state(), scaler.state_dict()), watching


def no_watch(*_):
    return contextlib.nullcontext()


def every_third(*given):
    return ampcheck.watch(*given, every=3, first=1)


# Where all that was recorded has overflowed, another step is looked for.
@pytest.mark.parametrize(("init_scale", "more"), [(2.0**16, []), (2.0**120, [2])])
def test_the_loop_is_bit_for_bit_what_it_is_alone(init_scale, more):
    (losses, weights, state, scaler), _ = trained(no_watch, init_scale=init_scale)
    (watched, seen_weights, seen_state, seen_scaler), watching = trained(every_third, init_scale=init_scale)
    assert watched == losses
    assert all(map(torch.equal, weights, seen_weights))
    assert torch.equal(state, seen_state)
    assert scaler == seen_scaler
    report = watching.report()
    assert report.loop.recorded == (0, *more, 3)
    assert [one.step for one in watching._session.watcher.tape.recorded] == [0, *more, 3, 6]
    assert report.loop.steps == watching.steps == 7


def hooks_in_place():
    names = [
        *(
            torch.autograd.backward,
            torch.save,
            nn.Module.train,
            nn.Module.zero_grad,
            nn.utils.clip_grad_norm_,
        ),
        *(torch.amp.GradScaler.step, torch.amp.GradScaler.update, torch.amp.GradScaler.__init__),
        *(torch.autocast.__init__, torch.autocast.__enter__, torch.optim.Optimizer.add_param_group),
    ]
    tables = [
        *(module_hooks._global_forward_pre_hooks, module_hooks._global_forward_hooks),
        *(optimizer_hooks._global_optimizer_pre_hooks, optimizer_hooks._global_optimizer_post_hooks),
    ]
    stack = [id(mode) for mode in _get_current_dispatch_mode_stack()]
    return [id(name) for name in names], [list(table) for table in tables], stack


def broken_off(watching, net, optimizer, scaler):
    with watching:
        step(net, optimizer, scaler)
        net(torch.randn(1, 8))  # a recorded step is open
        raise RuntimeError("its own")


def test_nothing_stays_behind_even_after_an_error():
    before = hooks_in_place()
    held = made()
    watching = ampcheck.watch(*held)
    with pytest.raises(RuntimeError, match="its own"):
        broken_off(watching, *held)
    assert hooks_in_place() == before
    assert watching.report().loop.steps == 1


def test_nothing_is_kept_of_what_was_watched():
    (_, weights, *_), watching = trained(ampcheck.watch)
    known = [weakref.ref(watching), weakref.ref(watching._session.watcher), weakref.ref(weights[0])]
    del watching, weights, _
    gc.collect()
    assert [ref() for ref in known] == [None] * 3


def our_frames(depth):
    """Return how many calls of ampcheck's functions the steps between recorded ones make."""
    net, optimizer, scaler = made(depth)
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

    with ampcheck.watch(net, optimizer, scaler, every=0, first=1):
        for _ in range(2):
            step(net, optimizer, scaler)
        sys.setprofile(count)
        try:
            for _ in range(4):
                step(net, optimizer, scaler)
        finally:
            sys.setprofile(None)
    return calls / 4


def test_between_recorded_steps_no_operation_and_no_module_calls_us():
    # How often memory is looked through for averages hangs on time, and what that calls on what else is alive.
    assert our_frames(40) - our_frames(2) < 38 / 2


def test_what_was_made_before_is_known(tmp_path):
    _, watching = trained(every_third, init_scale=2.0**120)
    watching.save(tmp_path / "report.json")
    report = read(tmp_path / "report.json")
    scaler = report.loop.thing("scaler 1")
    assert scaler.settings["init_scale"] == 2.0**120
    assert scaler.settings["live"]
    assert report.loop.first_scales == {"scaler 1": 2.0**120}
    assert report.loop.skipped == watching.skipped == 7
    assert watching.scale == 2.0**113
    assert "net.0" in {module.path for module in report.low.modules}
    assert report.target == "Sequential"


def test_a_part_that_is_called_alone_keeps_its_name_in_the_model():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    two = Two()
    optimizer = torch.optim.SGD(two.parameters(), 0.1)
    with ampcheck.watch(two, optimizer, name="pair") as watching, torch.autocast("cpu", torch.bfloat16):
        two.head(two.encoder(torch.randn(4, 8))).sum().backward()
        optimizer.step()
    assert {"pair.encoder", "pair.head"} <= {module.path for module in watching.report().low.modules}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda net, optimizer, scaler: {"model": net.forward}, "expected a model"),
        (lambda net, optimizer, scaler: {"optimizer": "adam"}, "expected an optimizer.* got 'adam'"),
        (lambda net, optimizer, scaler: {"optimizer": scaler, "scaler": optimizer}, "expected an optimizer"),
        (lambda net, optimizer, scaler: {"scaler": [scaler, 3]}, "expected a GradScaler.* got 3"),
        (lambda net, optimizer, scaler: {"every": -1}, "got every=-1"),
        (lambda net, optimizer, scaler: {"first": -2}, "got first=-2"),
        (lambda net, optimizer, scaler: {"what_if": "int8"}, "expected what_if to be fp16 or bf16"),
    ],
)
def test_what_cannot_be_watched_is_refused_before_anything_is_touched(given, message):
    before = hooks_in_place()
    with pytest.raises(ampcheck.AmpcheckError, match=message):
        ampcheck.watch(**given(*made()))
    assert hooks_in_place() == before


def test_a_watch_is_for_one_training():
    held = made()
    watching = ampcheck.watch(*held)
    with watching:
        step(*held)
        with pytest.raises(ampcheck.AmpcheckError, match="has not begun"), watching:
            pass
        step(*held)
    assert watching.report().loop.steps == 2


def test_a_loop_in_fp32_as_if_mixed_precision_were_added_to_it():
    def plain(watch):
        net, optimizer, _ = made()
        losses = []
        with watch(net, optimizer) as watching:
            for _ in range(4):
                x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, list(net.parameters()), watching

    losses, weights, _ = plain(no_watch)
    watched, seen, watching = plain(lambda *given: ampcheck.watch(*given, every=2, first=1, what_if="fp16"))
    report = watching.report()
    assert all(map(torch.equal, weights, seen))  # gradients are those of FP32
    assert watched[1::2] == losses[1::2]
    assert (report.precision, report.loop.recorded) == ("fp16", (0, 2))
    assert {
        site.dtype for site in report.low.sites if site.op == "addmm" and site.phase is Phase.FORWARD
    } == {"float16"}
    assert 0 < report.outcomes["settled"].grad_error < 0.01


def test_a_scaler_that_torch_switched_off_before_the_cpu_stood_in_is_told_of():
    if torch.cuda.is_available():
        pytest.skip("a scaler is live here")
    net, optimizer, _ = made()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        late = torch.amp.GradScaler("cuda")
    for scaler, told in ((late, True), (None, False)):
        with ampcheck.watch(net, optimizer, scaler, as_cuda=True) as watching:
            inside = scaler or torch.amp.GradScaler("cuda")
            assert inside.is_enabled() is not told
        assert any("make it inside the watch" in note for note in watching.report().notes) is told


def test_of_steps_that_were_not_recorded_nothing_is_claimed():
    (*_, scaler), watching = trained(lambda *given: ampcheck.watch(*given, steps={99}))
    assert scaler["scale"] == 2.0**16
    assert answer(watching.report()) == (
        Health.UNKNOWN,
        "no step was recorded, so nothing was judged; 0 of 7 steps skipped",
    )


@pytest.mark.parametrize("steps", [30, 4])
def test_a_scaler_that_finds_its_scale_after_the_first_recorded_steps_is_no_error(steps):
    """With so large a start seven steps are skipped; steps are recorded until one is not."""
    net, optimizer, scaler = made(init_scale=2.0**25)
    with ampcheck.watch(net, optimizer, scaler, every=1000, first=2) as watching:
        for _ in range(steps):
            step(net, optimizer, scaler)
    report = watching.report()
    errors = [finding.code for finding in report.findings if finding.severity is Severity.ERROR]
    if steps == report.loop.skipped:  # none went through, so nothing is known of a scale that fits
        assert errors == ["AMP202"]
        return
    assert 4 <= report.loop.skipped <= report.loop.recorded[-1] < steps
    assert not errors
    assert answer(report)[0] is Health.SAFE


def test_an_error_of_ours_leaves_no_scaled_gradient_behind(monkeypatch):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().clone()

    def fails(*_):
        raise ValueError

    bare = train()
    monkeypatch.setattr("ampcheck.observe.script.comparing.Compared.measured", fails)
    with ampcheck.watch(what_if="fp16"):
        watched = train()
    # One step had fp16's gradient; at a scale of 2^16 it would be off by far more.
    assert torch.allclose(bare, watched, rtol=1e-2)


BOUND = ("scale", "unscale_", "step", "update")


class OfItsOwn(torch.amp.GradScaler):
    """Calls the methods that it replaces: what it runs holds its class."""

    def scale(self, outputs):
        return super().scale(outputs)

    def update(self, new_scale=None):
        super().update(new_scale)


def heard(kind, bound):
    """Return what is heard of a loop, its scale at the end, and the functions of the methods that were `bound`."""
    net, optimizer, _ = made()
    scaler = kind("cpu", init_scale=2.0**24, growth_interval=2)
    early = {name: getattr(scaler, name) for name in bound}

    def method(name):
        return early.get(name) or getattr(scaler, name)

    with ampcheck.watch(net, optimizer) as watching:
        for _ in range(12):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(net(torch.randn(16, 8)), torch.randint(0, 4, (16,)))
            method("scale")(loss).backward()
            method("unscale_")(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            method("step")(optimizer)
            method("update")()
    return watching.report(), scaler.get_scale(), [one.__func__ for one in early.values()]


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OfItsOwn])
@pytest.mark.parametrize("bound", [*((name,) for name in BOUND), BOUND])
def test_methods_of_a_scaler_that_were_bound_before_are_heard(kind, bound):
    report, scale, _ = heard(kind, bound)
    assert [finding.code for finding in report.findings if finding.severity is Severity.ERROR] == []
    assert report.loop.scaling == ""
    assert report.loop.first_scales == {"scaler 1": 2.0**24}
    assert [event.after for event in report.loop.scales][-1:] == [scale]
    alike = heard(kind, ())[0].loop
    assert (report.loop.scales, report.loop.skipped) == (alike.scales, alike.skipped)
    assert (
        report.loop == alike or kind is OfItsOwn
    )  # what a script's own class calls is heard at its line there


def test_methods_of_a_scaler_are_afterwards_as_before():
    codes = {name: vars(torch.amp.GradScaler)[name].__code__ for name in BOUND}
    *_, functions = heard(torch.amp.GradScaler, BOUND)
    assert [function.__code__ for function in functions] == list(codes.values())
    assert not any(vars(function) or function.__kwdefaults__ for function in functions)
