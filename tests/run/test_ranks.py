"""Ranks under torchrun: one report on the first of them, equal to a single process's where the maths says so."""

import os
import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import ranks_script
import torch
from readme import LOOPS, block, shape

import ampcheck
from ampcheck.compare.merge import merge
from ampcheck.diagnose.rules.loop_ranks import first_disagreement, first_overflow
from ampcheck.renderers.terminal import render
from ampcheck.saved.report_json import from_json, read, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.loop import Cause, Loop, ScaleEvent
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site, Trace, total

SCRIPT = Path(ranks_script.__file__)
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


def launched(folder, *words):
    """Run the script on two ranks, watched, as a user would; return the merged report and what was said."""
    out = folder / f"{'-'.join(words)}.json"
    command = ["-m", "ampcheck", "run", "--format", "json", "-o", str(out), str(SCRIPT), *words]
    if words == ("ddp", "overflow"):  # which the README shows
        torchrun = [*forked.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        started = [begun([*torchrun, *command])]
    else:
        started = two_ranks([*forked.python(), *command])
    for process in started:
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
    return read(out)


def begun(command, **environment):
    return subprocess.Popen(
        command,
        cwd=SCRIPT.parents[2],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def two_ranks(command):
    """Start a command twice, with what torchrun would tell each of itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    return [begun(command, **job, RANK=rank, LOCAL_RANK=rank) for rank in "01"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return {
        how: launched(folder, *how.split())
        for how in ("ddp exact", "fsdp exact", "ddp overflow", "fsdp overflow", "apart overflow")
    }


@pytest.fixture(scope="module")
def alone():
    with ampcheck.watch(None) as watching:
        ranks_script.train("alone", 2, "exact")
    return watching.report()


def activations(report: Report, trace: str) -> dict[tuple[str, str, str], TensorStats]:
    """Return what the model's operations and modules gave in the forward, by place: lines differ, numbers do not."""
    sites = getattr(report, trace).sites
    return {
        (site.module, site.op, site.slot, site.dtype): stats
        for site, stats in sites.items()
        if site.phase is Phase.FORWARD and site.module and site.op != "_to_copy"
    }


def gradients(report: Report, trace: str) -> dict[tuple[str, str], TensorStats]:
    sites = getattr(report, trace).sites
    return total(
        ((site.module, site.slot), stats)
        for site, stats in sites.items()
        if site.slot.startswith("param_grad")
    )


@pytest.mark.parametrize("how", ["ddp exact", "fsdp exact"])
@pytest.mark.parametrize("trace", ["low", "reference"])
def test_the_halves_of_a_batch_add_up_to_the_batch(both, alone, how, trace):
    merged, single = both[how], alone
    assert [rank.name for rank in merged.ranks] == ["rank 0", "rank 1"]
    here, there = activations(merged, trace), activations(single, trace)
    assert there
    assert here == there


@pytest.mark.parametrize("trace", ["low", "reference"])
def test_under_ddp_each_rank_holds_the_whole_average(both, alone, trace):
    whole = gradients(alone, trace)
    assert whole
    assert gradients(both["ddp exact"], trace) == {key: stats + stats for key, stats in whole.items()}


@pytest.mark.parametrize("trace", ["low", "reference"])
def test_under_fsdp_the_shards_add_up_to_the_gradient(both, alone, trace):
    assert gradients(both["fsdp exact"], trace) == gradients(alone, trace)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL between two ranks needs two GPUs")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_ranks_on_gpus_say_what_ranks_on_a_cpu_say(both, tmp_path, how):
    merged = launched(tmp_path, how, "exact", "cuda")
    for trace in ("low", "reference"):
        assert activations(merged, trace) == activations(both[f"{how} exact"], trace)
        assert gradients(merged, trace) == gradients(both[f"{how} exact"], trace)


@pytest.mark.parametrize("how", ["ddp overflow", "fsdp overflow"])
def test_an_overflow_is_told_by_the_rank_it_began_on(both, how):
    merged = both[how]
    found = {finding.code: finding for finding in merged.findings}
    assert found["AMP101"].ranks == ("rank 1",)
    assert found["AMP101"].severity is Severity.ERROR
    assert "AMP415" not in found  # both skipped it
    rank, event = first_overflow(merged.ranks)
    assert (rank.name, event.step, event.cause.op) == ("rank 1", 1, "addmm")
    assert [(event.before, event.after) for rank in merged.ranks for event in rank.scales] == [(256, 128)] * 2
    assert "first to overflow: rank 1, step 1" in " ".join(render(merged, width=100, color=False).split())
    assert from_json(to_json(merged)).ranks == merged.ranks


def test_ranks_that_add_nothing_up_come_apart(both):
    merged = both["apart overflow"]
    finding = next(finding for finding in merged.findings if finding.code == "AMP415")
    assert finding.ranks == ("rank 0", "rank 1")
    assert finding.numbers["step"] == 1
    assert "rank 0 256, rank 1 128; rank 1 skipped it: the gradient of model." in finding.message
    assert [len(rank.scales) for rank in merged.ranks] == [0, 1]


def test_two_ranks_print_what_the_readme_shows(both):
    printed = " ".join(shape(render(both["ddp overflow"], width=100, color=False)))
    for part in re.split("(?=  ! )", block("<!-- output: torchrun --nproc-per-node 2", LOOPS)):
        assert " ".join(shape(part)) in printed


def told(first, *scales):
    loop = Loop(scales=tuple(scales), first_scales={"scaler 1": first}, steps=9)
    return Report("t", "fp16", 8, Trace(), Trace(), loop=loop)


def skip(step, before, op=""):
    return ScaleEvent(step, "scaler 1", before, before / 2, skipped=True, cause=Cause("w", "", op=op))


def test_scales_that_diverge_are_found_with_the_rank_that_skipped():
    merged = merge({"rank 0": told(64.0), "rank 1": told(64.0, skip(5, 64.0)), "rank 2": told(64.0)})
    (finding,) = merged.findings
    assert (finding.code, finding.ranks) == ("AMP415", ("rank 0", "rank 1", "rank 2"))
    assert finding.numbers["step"] == 5
    assert "rank 1 32" in finding.message
    assert "rank 1 skipped it: the gradient of w" in finding.message
    pair = merge({"rank 0": told(64.0), "rank 1": told(64.0, skip(5, 64.0))})
    assert merge({"pair": pair, "rank 2": told(64.0)}) == merged
    assert "differs between ranks from step 5 on" in render(merged, width=200, color=False)


def test_equal_scales_are_no_finding():
    merged = merge({f"rank {i}": told(64.0, skip(3, 64.0)) for i in range(2)})
    assert merged.findings == ()
    assert first_disagreement(merged.ranks) is None


def test_of_ranks_that_skip_together_the_one_whose_operations_overflowed_is_first():
    ranks = merge({"rank 0": told(64.0, skip(3, 64.0)), "rank 1": told(64.0, skip(3, 64.0, op="mm"))}).ranks
    assert first_overflow(ranks)[0].name == "rank 1"


def test_ranks_at_different_scales_are_added_at_the_smaller_one():
    site = Site("a", "mm", "output", Phase.BACKWARD, "float16")
    stats = TensorStats.from_counts({3: 4}, amax=12.0, sum_squares=400.0)
    high = replace(told(64.0), log2_scale=9, low=Trace({site: stats}))
    low = replace(told(64.0), low=Trace({site: stats.scaled(-1)}))
    merged = merge({"rank 0": high, "rank 1": low})
    assert merged.log2_scale == 8
    assert merged.low.sites[site] == stats.scaled(-1) + stats.scaled(-1)
