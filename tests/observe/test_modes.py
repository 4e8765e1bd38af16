"""A recorded step is invisible to the script: its modes, its operators, its threads, its hooks, its random numbers."""

import gc
import importlib
import io
import threading
import time
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from witness import Names

import ampcheck
from ampcheck.observe import modes
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.script import clock
from ampcheck.run.child_processes import WatchOptions
from ampcheck.run.watch_loop import YIELDED
from ampcheck.values.loop import Kind


class CountingCalls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def net(p=0.1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 4))


def trained(watched, forward=lambda model, x: model(x), steps=4, dtype=torch.float16, **options):
    """Train a few steps; return the parameters, the random state and the report."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    report = None

    def loop():
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(8, 8)
            with torch.autocast("cpu", dtype):
                loss = forward(model, x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    if watched:
        with ampcheck.watch(model, optimizer, scaler, reference="all", every=1, **options) as watch:
            loop()
        report = watch.report()
    else:
        loop()
    return [*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()], report


def test_modes_within_and_around_a_step_see_what_they_see_alone():
    seen = []
    for watched in (False, True):
        outer, inner, calls = Names(), Names(), CountingCalls()

        def forward(model, x, inner=inner, calls=calls):
            with inner, calls:
                hidden = model[:2](x)
            return model[2:](hidden)

        with outer:
            held, report = trained(watched, forward)
        seen.append((held, outer.seen, inner.seen, calls.seen))
    alone, beside = seen
    assert all(torch.equal(a, b) for a, b in zip(alone[0], beside[0], strict=True))
    assert alone[1:] == beside[1:]
    assert len(report.loop.recorded) == 4
    assert not _get_current_dispatch_mode_stack()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_mode_entered_before_the_recorder_may_be_left_before_it(compiled):
    mode, recorder = Names(), Recorder(net(), compiled=compiled)
    mode.__enter__()
    recorder.__enter__()
    torch.ones(2).sin()
    mode.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == [recorder]
    torch.ones(2).cos()
    recorder.__exit__(None, None, None)
    assert not _get_current_dispatch_mode_stack()
    assert len(mode.seen) == 2
    assert recorder.operations == 4


def test_a_recorder_left_in_another_thread_lets_everything_pass():
    recorder = Recorder(net())
    ready, done = threading.Event(), threading.Event()
    found = []

    def elsewhere():
        recorder.__enter__()
        ready.set()
        done.wait()
        before = recorder.operations
        torch.ones(2).sin()
        found.append((recorder.operations - before, torch.ones(2).sin().sum().item()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    ready.wait()
    recorder.__exit__(None, None, None)
    done.set()
    thread.join()
    assert found == [(0, pytest.approx(2 * 0.8414710))]
    modes._LEFT.clear()


def test_an_operator_of_the_scripts_own_runs_once():
    runs = []

    @torch.library.custom_op("ampcheck_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x * 2

    doubled.register_autograd(lambda _ctx, grad: grad * 2)
    counts = []
    for watched in (False, True):
        runs.clear()
        held, report = trained(watched, lambda model, x: doubled(model(x)))
        counts.append((len(runs), held))
    assert counts[0][0] == counts[1][0] == 4
    assert all(torch.equal(a, b) for a, b in zip(counts[0][1], counts[1][1], strict=True))
    taken = "results of doubled that the FP32 reference takes from the script"
    assert report.low.not_audited[taken]
    assert taken in report.verdict.coverage.gaps  # nobody knows what half precision did to what enters it


def test_an_error_of_our_own_ends_the_recording_and_not_the_script(monkeypatch):
    alone, _ = trained(watched=False)

    def fails(*_):
        raise RuntimeError("of ours")

    monkeypatch.setattr(Shadow, "_mirror", fails)
    beside, report = trained(watched=True)
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
    assert not report.loop.recorded
    assert any("RuntimeError: of ours" in text for text in report.low.not_audited)


def test_a_step_that_takes_too_long_is_left(monkeypatch):
    alone, _ = trained(watched=False)
    monkeypatch.setattr(clock, "FLOOR", 0.0)
    monkeypatch.setattr(clock, "_LOOKS", 1)
    mirror = Shadow._mirror

    def slow(*args):
        time.sleep(0.05)
        mirror(*args)

    monkeypatch.setattr(Shadow, "_mirror", slow)
    beside, report = trained(watched=True)
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
    assert not report.loop.recorded
    told = [text for text in report.low.not_audited if "recorded steps abandoned" in text]
    assert told == ["recorded steps abandoned: they took more than 20 times as long as others"]


def test_the_clock_goes_by_a_bare_step_where_one_is_known():
    watch = clock.Clock(bare=10.0, times=20.0)
    watch.start()
    assert not any(watch.late() for _ in range(1000))


def test_the_command_line_says_how_slow_a_recorded_step_may_be():
    from ampcheck.cli import main

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchOptions, "session", lambda options, _: seen.append(options.schedule.slowest))
        main(["run", "--slowest", "3", "-c", "import torch"])
        main(["run", "-c", "import torch"])
    assert seen == [3, 20]


def test_training_in_another_thread_is_counted_and_the_watch_goes_on():
    stop = threading.Event()

    def other():
        model = net(0.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while not stop.is_set():
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()

    thread = threading.Thread(target=other)
    thread.start()
    _, report = trained(watched=True, steps=12)
    stop.set()
    thread.join()
    assert report.loop.steps == 12
    assert report.loop.recorded
    assert report.low.not_audited["steps of training in other threads"]


def test_a_watch_within_a_watch_yields_and_says_so(capfd):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ampcheck.watch(model, optimizer) as outer, ampcheck.watch(model, optimizer) as inner:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert outer.steps == 1
    assert inner.steps == 0
    assert YIELDED in inner.report().notes
    assert YIELDED in capfd.readouterr().err
    with ampcheck.watch(model, optimizer) as again:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert again.steps == 1


def audit():
    torch.manual_seed(0)
    model = net(0.0)
    report = ampcheck.check(model, 300 * torch.randn(64, 8), lambda m, b: m(b).square().square().mean())
    return sorted(finding.code for finding in report.findings), report.low.operations


def test_audits_in_two_threads_say_what_one_says_alone():
    alone, found = audit(), []
    threads = [threading.Thread(target=lambda: found.append(audit())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone, alone]
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype is torch.bfloat16


def test_an_audit_within_a_watch_is_none_of_its_steps():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ampcheck.watch(model, optimizer, every=1) as watch:
        for at in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            if at == 1:
                assert audit() == audit()
    assert watch.steps == 3


@pytest.fixture
def later(tmp_path, monkeypatch):
    """Return how to import a module that binds names of torch's; some of what they were is kept for good."""
    (tmp_path / "imports_while_watched.py").write_text(
        "from torch.nn.utils import clip_grad_norm_\n"
        "from torch import save\n"
        "from torch.autograd import backward, grad\n"
        "KEPT = [clip_grad_norm_, save, backward, grad]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: importlib.import_module("imports_while_watched")


def test_names_imported_during_a_watch_are_torchs_own_afterwards(later):
    with ampcheck.watch() as watch:
        names = later()
    own = [torch.nn.utils.clip_grad_norm_, torch.save, torch.autograd.backward, torch.autograd.grad]
    assert [names.clip_grad_norm_, names.save, names.backward, names.grad] == own
    assert not {*names.KEPT[:2]} & {*own}  # still ours, and deaf
    before = watch.steps
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    names.KEPT[0]([parameter], 1.0)
    assert watch.steps == before


def test_what_was_bound_during_a_watch_keeps_nothing_of_it_alive(later):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ampcheck.watch(model, optimizer) as watch:
        clip, save, backward, grad = later().KEPT
        backward(model(torch.ones(2, 8)).sum())
        optimizer.step()
    assert watch.report().loop.count(Kind.BACKWARD) == 1
    seen = [weakref.ref(watch), weakref.ref(watch.watcher)]
    del watch
    gc.collect()
    assert [one() for one in seen] == [None, None]

    def go_on():
        for _ in range(50):
            backward(model(torch.ones(2, 8)).sum())
            grad(model(torch.ones(2, 8)).sum(), list(model.parameters()))
            clip(model.parameters(), 1.0)
            save(torch.ones(1), io.BytesIO())
        gc.collect()
        return len(gc.get_objects())

    before = go_on()
    assert go_on() - before < 50
