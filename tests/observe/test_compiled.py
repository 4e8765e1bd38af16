"""What C does and what Python does are one recorder: the same trace, on every model there is."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from awkward_runs import CASES
from transparency import options
from witness import seed

from ampcheck.gc_pause import no_collections
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.seen import REMEMBERED, CastInputs
from ampcheck.observe.statistics import measure
from ampcheck.observe.step import casting_rules

if measure.NATIVE is None:
    pytest.skip("the extension was not built, or AMPCHECK_COMPILED=0", allow_module_level=True)

#: Whose calls in threads race each other, so that no two runs are alike.
RACING = {"threads", "data_parallel"}
MODELS = "torchvision:mobilenet_v3_small timm:convnext_atto transformers:llama transformers:t5".split()


def exact(trace):
    """Return a trace without its sums of squares, which depend on the order of additions, and those."""
    sites = {site: replace(stats, sum_squares=0.0) for site, stats in trace.sites.items()}
    squares = [stats.sum_squares for stats in trace.sites.values()]
    return replace(trace, sites=sites), list(sites), squares


def traced(model, batch, loss, dtype, steps, **options):
    recorder = Recorder(model, **options)
    assert (recorder.path is not None) == options["compiled"]
    before = Snapshot(model, batch)
    gc.collect()  # so that both ways find the same objects of torch alive
    for _ in range(steps):
        before.restore()
        seed()
        with no_collections(), casting_rules(torch.device("cpu"), dtype), recorder:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                value = loss(model, batch)
            value.backward()
    before.restore()
    return exact(recorder.trace(recorder.fetch()))


def assert_the_same(model, batch, loss, dtype, steps=1, **options):
    # The first one alone may do more: a nested tensor computes its sizes once.
    found = [traced(model, batch, loss, dtype, steps, compiled=c, **options) for c in (True, True, False)][1:]
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]  # in the same order
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-6)


AWKWARD = sorted(CASES.keys() - RACING)


# FP32 takes the same way with fewer casts: every fourth model is enough of it.
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, torch.float16) for name in AWKWARD] + [(name, None) for name in AWKWARD[::4]]
)
def test_awkward_models(name, dtype):
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    assert_the_same(model, batch, loss, dtype, execute=execute)


# FP32 was the way of every fourth model above; here one more has it.
@pytest.mark.parametrize(("spec", "dtype"), [*((spec, torch.bfloat16) for spec in MODELS), (MODELS[0], None)])
def test_models_as_they_are(spec, dtype):
    from ampcheck.targets import load

    target = load(spec, options(spec))
    assert_the_same(target.model, target.batch(0), target.loss, dtype, steps=1 if dtype is None else 2)


def test_more_results_than_are_remembered():
    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.Linear(4, 4)

        def forward(self, x):
            kept = [x]
            for i in range(700):
                kept.append(self.cell(kept[-1]).tanh())
                if i % 100 == 0:
                    kept.append(kept[i // 2] + kept[-1])
            return torch.stack(kept).sum()

    assert_the_same(Loop(), torch.randn(2, 4), lambda model, x: model(x), None, steps=2)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("addresses", [1, 2 * REMEMBERED])
def test_what_is_remembered_does_not_hang_on_addresses(compiled, addresses):
    # What died may leave its address to the next: the first is as far away whether or not it does.
    seen = Recorder(torch.nn.Linear(1, 1), compiled=compiled).tally._seen
    first, others, known = torch.ones(1), [torch.ones(1) for _ in range(addresses)], []
    seen.remember(first, 7)
    for row in range(REMEMBERED + 3):
        seen.remember(others[row % addresses], row)
        known.append(seen.row(first))
    assert known == [7] * (REMEMBERED - 1) + [None] * 4


@pytest.mark.parametrize("addresses", [1, 2 * REMEMBERED])
def test_which_casts_are_remembered_does_not_hang_on_addresses(addresses):
    first, half, others = torch.ones(1), torch.ones(1).half(), [torch.ones(1) for _ in range(addresses)]
    for casts_since, known in [(REMEMBERED - 1, True), (REMEMBERED, False)]:
        casts = CastInputs()
        casts.undoes(first, half)
        for i in range(casts_since):
            casts.undoes(first, others[i % addresses])
        assert casts.undoes(half, torch.ones(1)) is known


def test_what_raises_is_the_operation_s_own_error():
    model = torch.nn.Linear(3, 3)
    for compiled in (True, False):
        recorder = Recorder(model, compiled=compiled)
        with recorder, pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(2, 5))
        assert recorder.failed is not None
        assert recorder.failed.op == "addmm"
        assert recorder.tracker.infos()[0].calls == 1
        with recorder:
            model(torch.ones(2, 3)).sum().backward()
        assert recorder.trace(recorder.fetch()).modules[0].calls == 2


def test_a_recorder_goes_without_the_garbage_collector():
    with no_collections():
        recorder = Recorder(torch.nn.Linear(3, 3))
        with recorder:
            recorder.tracker.module(0)(torch.ones(2, 3)).sum().backward()
        alive = [weakref.ref(recorder), weakref.ref(recorder.tracker), weakref.ref(recorder.tally)]
        del recorder
        assert [reference() for reference in alive] == [None] * 3


def test_memory_used_again_holds_nothing_of_the_recorder_before():
    # The next takes over the tables of the last: with another model, in other dtypes, longer and shorter.
    def recorded(width, dtype, steps):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, dtype=dtype) for _ in range(steps)))
        recorder = Recorder(model)
        with recorder:
            model(torch.randn(2, width, dtype=dtype)).sum().backward()
        return exact(recorder.trace(recorder.fetch()))

    sizes = [(3, torch.float32, 2), (5, torch.float64, 40), (3, torch.float32, 2), (4, torch.bfloat16, 200)]
    alone = []
    for size in sizes:
        held = Recorder(torch.nn.Linear(1, 1))  # takes what is spare, so that the next begins with nothing
        alone.append(recorded(*size))
        del held
    assert [recorded(*size) for size in sizes] == alone


def test_an_operation_seen_before_runs_no_python_of_ours():
    import sys

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
    x = torch.randn(4, 8)
    recorder = Recorder(model)
    ours = []

    def called(frame, event, _):
        if event == "call" and "/ampcheck/" in frame.f_code.co_filename.replace("\\", "/"):
            ours.append(frame.f_code.co_name)

    def step():
        model(x).sum().backward()

    with recorder:
        step()
        step()  # adds to the gradients, as the first did not
        sys.setprofile(called)
        try:
            step()
        finally:
            sys.setprofile(None)
    assert recorder.path.operations > 200
    assert ours == ["run_backward"]  # as the backward begins, for threads: once a step, not once an operation


@pytest.mark.parametrize("compiled", [True, False])
def test_bits_in_another_dtype_are_other_numbers(compiled):
    class Bits(torch.nn.Module):
        def forward(self, x):
            return (x * 2).view(torch.int32), (x * 4).view(torch.float32)

    model, x = Bits(), torch.ones(4)
    recorder = Recorder(model, compiled=compiled)
    with recorder, torch.no_grad():
        model(x)
    sites = recorder.trace(recorder.fetch()).sites
    assert {(site.op, site.slot, site.dtype) for site in sites} == {
        ("", "input[0]", "float32"),
        ("mul", "output", "float32"),
        ("", "output[1]", "float32"),
    }
