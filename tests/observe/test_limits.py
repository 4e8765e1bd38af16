"""Models of unusual shapes cost what their parts cost: memory that is gone, depth, thousands of modules unused."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from instructions import instructions
from torch import nn

import ampcheck
from ampcheck.observe import native
from ampcheck.observe.model.depth import room
from ampcheck.observe.model.modules import ModuleTracker
from ampcheck.observe.model.structure import outermost
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.tally import FREED
from ampcheck.observe.unusual import in_memory


class Freed(nn.Module):
    """Hands a module a view of memory that is freed, or shrunk, as offloading does."""

    def __init__(self, left):
        super().__init__()
        self.linear, self.identity, self.left = nn.Linear(16, 4), nn.Identity(), left

    def forward(self, x):
        buffer = torch.randn(64, 16)
        view = buffer[8:16]
        buffer.untyped_storage().resize_(self.left)
        self.identity(view)
        return self.linear(x)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("left", "read"), [(0, False), (8 * 64, False), (16 * 64 - 1, False), (16 * 64, True)]
)
def test_a_view_is_read_only_where_its_memory_reaches(compiled, left, read):
    model = Freed(left)
    recorder = Recorder(model, compiled=compiled)
    with recorder:
        model(torch.randn(8, 16)).sum().backward()
    trace = recorder.trace(recorder.fetch())
    inside = {site.slot for site in trace.sites if site.module == "identity"}
    assert inside == ({"input[0]", "output"} if read else set())
    assert trace.not_audited.get(FREED, 0) == (0 if read else 2)


def test_memory_is_told_from_none():
    whole = torch.randn(4, 4)
    assert in_memory(whole)
    assert in_memory(whole.t())
    assert in_memory(whole[1:, 2:])
    assert in_memory(torch.empty(0))
    assert in_memory(torch.ones(1).expand(100))
    whole.untyped_storage().resize_(60)
    assert not in_memory(whole)
    assert in_memory(whole[:3])


class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Deep(depth - 1) if depth else None
        self.linear = nn.Linear(4, 4) if depth == 0 else nn.Identity()

    def forward(self, x):
        return self.linear(x) if self.inner is None else self.inner(x)


def deepest(run):
    """Return how deep modules can be nested until Python refuses."""
    low, high = 10, 2000
    while high - low > 1:
        middle = (low + high) // 2
        model = build(middle)
        try:
            run(model)
            low = middle
        except RecursionError:
            high = middle
    return low


def build(depth):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return Deep(depth)
    finally:
        sys.setrecursionlimit(before)


def test_a_deep_model_runs_where_it_would_have_run():
    def watched(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with ampcheck.watch(model) as watching:
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert watching.steps == 1

    alone = deepest(lambda model: model(torch.ones(1, 4)))
    assert alone > 200
    watched(build(alone))
    ampcheck.check(build(alone), torch.ones(1, 4), lambda model, x: model(x).sum())


def test_a_script_sees_the_limit_that_it_set():
    before = sys.getrecursionlimit, sys.setrecursionlimit, sys.getrecursionlimit()
    with room():
        assert sys.getrecursionlimit() == before[2]
        sys.setrecursionlimit(5000)
        assert sys.getrecursionlimit() == 5000
        with pytest.raises(ValueError, match="recursion limit"):
            sys.setrecursionlimit(-1)
        with room():
            assert sys.getrecursionlimit() == 5000
        assert sys.getrecursionlimit() == 5000
        sys.setrecursionlimit(before[2])
    assert (sys.getrecursionlimit, sys.setrecursionlimit, sys.getrecursionlimit()) == before


def test_modules_that_are_never_called_cost_what_they_are():
    class Model(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.ModuleList(nn.Linear(1, 1) for _ in range(number))

        def forward(self, x):
            return self.used(x)

    def found():
        return ModuleTracker(model).not_audited()

    work = {}
    for number in (500, 1000, 2000):
        model = Model(number)
        work[number] = instructions(found)
        assert sum(found().values()) == number + 1  # the model itself was not called either
        assert any("more" in text for text in found())
    assert work[2000] - work[1000] < 2.1 * (work[1000] - work[500])


def test_the_outermost_of_paths_are_those_that_no_other_one_holds():
    paths = ["b.c", "a.b", "a", "ab", "a.b.c", "b.c.d", "b.cd", "z.y"]
    slow = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    assert outermost(paths) == slow


#: What a Python without a global lock says of itself, and a step that is audited there.
FREE = """import sys, sysconfig, warnings
sysconfig.get_config_vars()["Py_GIL_DISABLED"] = {free}
import ampcheck
print("torch" in sys.modules)
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
batch = 100 * torch.randn(16, 8)
report = ampcheck.check(model, batch, lambda model, x: model(x).square().mean())
for trace in (report.low, report.reference):
    print(trace.operations, trace.measured, trace.casts)
    print([(site, held.counts, held.zeros, held.amax) for site, held in trace.sites.items()])
print(report.verdict, report.findings, report.plan)
"""


def test_a_python_without_a_global_lock_takes_the_python_path_says_so_once_and_finds_the_same():
    environment = {name: held for name, held in os.environ.items() if name != "AMPCHECK_COMPILED"}
    done = [
        subprocess.run(
            [sys.executable, "-c", FREE.format(free=free)],
            capture_output=True, text=True, check=True, env=environment,
        )
        for free in (0, 1)
    ]  # fmt: skip
    assert done[0].stdout == done[1].stdout
    assert done[0].stdout.startswith("False\n")  # to import ampcheck stays light, and says nothing
    assert [one.stderr.count("free-threaded") for one in done] == [0, 1]


def test_where_warnings_are_errors_a_python_without_a_global_lock_is_none(monkeypatch):
    monkeypatch.setattr(native.sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    monkeypatch.delenv("AMPCHECK_COMPILED", raising=False)
    with pytest.warns(RuntimeWarning, match="free-threaded"):
        assert native.load() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.load() is None
