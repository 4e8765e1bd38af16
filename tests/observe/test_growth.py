"""Cost grows with operations and elements, not with what has been recorded before; counted, not timed."""

import sys

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.observe.recorder import Recorder
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import ModuleInfo, Phase, Site, Trace


def calls_of_ours(run):
    """Return how often functions of ampcheck's own are called during a run."""
    found = [0]

    def called(frame, event, _):
        if event == "call" and "/ampcheck/" in frame.f_code.co_filename.replace("\\", "/"):
            found[0] += 1

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found[0]


@pytest.mark.parametrize("compiled", [True, False])
def test_the_tenth_step_does_what_the_second_did(compiled):
    model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10))), torch.randn(2, 4)
    recorder = Recorder(model, compiled=compiled)

    def step():
        model.zero_grad()
        with recorder:
            model(x).sum().backward()

    step()
    counts = [calls_of_ours(step) for _ in range(10)]
    # Rows are added up every 1024 results, at a cost that sites, not history, decide.
    assert max(counts) - min(counts) <= 12


@pytest.mark.parametrize("compiled", [True, False])
def test_ten_times_the_layers_are_ten_times_the_calls(compiled):
    def calls(layers):
        model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))), torch.randn(2, 4)
        recorder = Recorder(model, compiled=compiled)

        def step():
            with recorder:
                model(x).sum().backward()

        return calls_of_ours(step)

    few, many = calls(30), calls(300)
    assert many <= 11 * few


def test_ten_times_the_modules_that_are_never_called_are_ten_times_the_calls_of_an_audit():
    def calls(unused):
        model = nn.Sequential(nn.Linear(4, 4))
        model.unused = nn.ModuleList(nn.Linear(1, 1) for _ in range(unused))
        return calls_of_ours(
            lambda: ampcheck.check(model, torch.ones(2, 4), lambda model, x: model[0](x).square().mean())
        )

    calls(1)  # what is made once for a process
    few, many = calls(60), calls(600)
    assert many < 11 * few


def test_a_hundred_thousand_operations():
    recorder, x = Recorder(nn.Identity()), torch.ones(3)
    with recorder, torch.no_grad():
        for _ in range(100_000):
            x = x * 1.0
    trace = recorder.trace(recorder.fetch())
    assert trace.operations == trace.measured == 100_000
    (stats,) = (stats for site, stats in trace.sites.items() if site.op == "mul")
    assert stats.numel == 300_000
    assert len(trace.sites) == 1


def test_between_recordings_nothing_of_ours_runs():
    model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10))), torch.randn(2, 4)
    recorder = Recorder(model)

    def step():
        model(x).sum().backward()

    with recorder:
        step()
    seen = recorder.trace(recorder.fetch()).operations
    assert calls_of_ours(step) == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert recorder.trace(recorder.fetch()).operations == seen
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_report_of_ten_thousand_layers_is_read_line_by_line():
    """Reading it takes a bounded number of calls a site; its seconds are in reports/overhead.md."""

    def report(layers):
        sites = {
            Site(f"layers.{i}", op, "output", Phase.FORWARD, "float16", "net.py", 7): TensorStats(
                -3, (4, 5), amax=1.5, sum_squares=9.0
            )
            for i in range(layers)
            for op in ("addmm", "relu")
        }
        modules = tuple(ModuleInfo(f"layers.{i}", "Linear", 1) for i in range(layers))
        trace = Trace(sites=sites, modules=modules)
        return Report("net", "fp16", 16, reference=trace, low=trace)

    small, large = to_json(report(100)), to_json(report(1000))
    few, many = calls_of_ours(lambda: from_json(small)), calls_of_ours(lambda: from_json(large))
    assert many <= 11 * few
    whole = report(10_000)
    assert from_json(to_json(whole)) == whole
