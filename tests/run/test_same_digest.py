"""Programs on two ranks, alone and under `ampcheck run`: the same losses, parameters and random state, bit for bit."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import forked
import pytest
import torch

from ampcheck.saved.report_json import read

PROGRAMS = Path(__file__).parents[1] / "studies" / "systems" / "ranks.py"
DIGEST = "DIGEST ([0-9a-f]{16})"
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


def digests(folder, words, *, nodes):
    """Run a command on two ranks; return the digest of each."""
    found = [one for said in printed(folder, words, nodes=nodes) for one in re.findall(DIGEST, said)]
    assert len(found) == 2, found
    return found


def printed(folder, words, *, nodes):
    """Run a command on two ranks, with what torchrun would tell each of itself; return what each printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    job |= {"LOCAL_WORLD_SIZE": str(2 // nodes), "GROUP_WORLD_SIZE": str(nodes)}
    ranks = [
        subprocess.Popen(
            [*forked.python(), *words],
            cwd=folder,
            env=os.environ
            | job
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % (2 // nodes)),
                "GROUP_RANK": str(rank * (nodes - 1)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = []
    for rank in ranks:
        said, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors
        found.append(said)
    return found


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("ddp", 1),
        ("ddp", 2),
        ("fsdp1_fp16", 1),
        ("fsdp2_fp16", 1),
        ("fsdp2_fp16", 2),
        ("tensor_parallel", 1),
        ("tensor_parallel_in_bf16", 1),
        ("pipeline", 1),
        ("pipeline", 2),
        ("waits_in_turn", 1),
    ],
)
def test_two_ranks_train_the_same_with_ampcheck_and_without(tmp_path, name, nodes):
    program = [str(PROGRAMS), name]
    alone = digests(tmp_path, program, nodes=nodes)
    watched = digests(tmp_path, ["-m", "ampcheck", "run", "-o", "r.json", *program], nodes=nodes)
    assert watched == alone
    report = read(tmp_path / "r.json")
    assert [rank.name for rank in report.ranks] == ["rank 0", "rank 1"]
    assert report.loop.steps == 6
    assert report.loop.recorded
    assert not [gap for gap in report.verdict.coverage.gaps if "beside training" in gap]
    wrong = ["internal", "abandoned"]
    if name != "pipeline":  # whose stages receive numbers in half precision
        wrong.append("kept from before")
    assert not [why for why in report.low.not_audited if any(word in why for word in wrong)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json"]


@pytest.mark.parametrize("name", ["fsdp1_overflow", "fsdp2_overflow"])
def test_what_one_rank_overflows_in_is_skipped_and_told_on_both(tmp_path, name):
    program = [str(PROGRAMS), name]
    alone = printed(tmp_path, program, nodes=1)
    assert printed(tmp_path, ["-m", "ampcheck", "run", "-o", "r.json", *program], nodes=1) == alone
    report = read(tmp_path / "r.json")
    assert len(report.ranks) == len(alone) == 2
    for seen, said in zip(report.ranks, alone, strict=True):
        rank, scales, skipped = json.loads(re.search("SCALES (.*)", said)[1])
        (first,) = seen.first_scales.values()
        known = [first] * len(scales)
        for event in seen.scales:
            known[event.step + 1 :] = [event.after] * (len(scales) - event.step - 1)
        assert (seen.name, known) == (f"rank {rank}", scales)
        assert [event.step for event in seen.scales if event.skipped] == skipped == [4]
    assert not {"AMP405", "AMP408"} & {finding.code for finding in report.findings}
