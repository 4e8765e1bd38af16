"""Processes that a script starts: they train as alone, and what they did is in the report of the script."""

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace

import forked
import pytest
import torch

from ampcheck.run.child_processes import Children, Followed, WatchOptions, joined
from ampcheck.saved.report_json import read
from ampcheck.values.loop import Loop
from ampcheck.values.report import Report
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Trace

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def work(rank, world, path, how):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(4):
        x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in how):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "dies" in how and step == 1:
            raise LookupError("of its own")
        if rank == 0:
            print(step, loss.item().hex(), torch.rand(1).item().hex(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, (2, sys.argv[2], sys.argv[3:]), nprocs=2, start_method=sys.argv[1])
    print("done")
"""


def python(*words, cwd):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*forked.python(), *words], check=False, cwd=cwd, env=env, capture_output=True, text=True
    )


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ranks_that_a_script_starts_print_what_they_print_alone_and_are_told_of(tmp_path, start):
    (tmp_path / "train.py").write_text(SCRIPT)
    bare = python("train.py", start, str(tmp_path / "a"), "bf16", cwd=tmp_path)
    options = ["-m", "ampcheck", "run", "--format", "json", "-o", "out.json"]
    watched = python(*options, "train.py", start, str(tmp_path / "b"), "bf16", cwd=tmp_path)
    assert (bare.returncode, watched.returncode) == (0, 0), watched.stderr
    assert watched.stdout == bare.stdout
    report = read(tmp_path / "out.json")
    assert [rank.name for rank in report.ranks] == ["rank 0", "rank 1"]
    assert (report.precision, report.loop.steps, report.loop.recorded) == ("bf16", 4, (0,))
    assert any("2 of the processes that the script started trained" in note for note in report.notes)
    assert not any("not seen" in note for note in report.notes)


def test_what_a_process_did_before_it_died_is_told(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["train.py", "fork", str(tmp_path / "store"), "dies"]  # spawned ones are told of above
    bare = python(*words, cwd=tmp_path)
    (tmp_path / "store").unlink(missing_ok=True)
    watched = python("-m", "ampcheck", "run", "-o", "out.json", *words, cwd=tmp_path)
    assert bare.returncode == watched.returncode == 1
    assert "LookupError: of its own" in watched.stderr
    report = read(tmp_path / "out.json")
    assert report.loop.steps == 2
    assert any("ended with" in note for note in report.notes)


TAKES = """
import sys
import torch.multiprocessing as mp
from torch.cuda import is_available
from torch.distributed import destroy_process_group, init_process_group
from torch import nn, ones, optim


def work(rank, path):
    print(is_available(), flush=True)
    init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm(4).cuda(), device_ids=[rank])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model(ones(3, 4, device="cuda")).sum().backward()
    optimizer.step()
    destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],))
"""


def test_what_a_script_takes_from_torch_is_stood_in_for_in_its_processes_too(tmp_path):
    (tmp_path / "train.py").write_text(TAKES)
    words = ["--as-cuda", "-o", "out.json", "train.py", str(tmp_path / "store")]
    watched = python("-m", "ampcheck", "run", *words, cwd=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout == "True\n"
    report = read(tmp_path / "out.json")
    assert report.loop.steps == 1
    assert any("ran on the CPU" in note for note in report.notes)


WATCH_OPTIONS = WatchOptions("train.py", Schedule(first=1))


def fail(error):
    torch.nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
    raise error("as it likes")


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt])
def test_a_function_ends_as_it_likes_and_its_report_is_written(tmp_path, error):
    place = tmp_path / "1.json"
    with pytest.raises(error, match="as it likes"):
        Followed(fail, WATCH_OPTIONS, str(place))(error)
    assert error.__name__ in " ".join(read(place).notes)


def test_where_a_report_cannot_be_written_the_function_runs_all_the_same(tmp_path):
    assert Followed(max, WATCH_OPTIONS, str(tmp_path / "nowhere" / "1.json"))(1, 2) == 2


def test_each_process_is_followed_once_and_leaves_nothing_behind():
    children = Children(WATCH_OPTIONS)
    process = multiprocessing.Process(target=max, args=(1, 2))
    children.follow(process)
    run = process._target
    children.follow(process)
    assert process._target is run
    process.run()  # here, as it would there
    folder = os.path.dirname(run.place)  # a string, as it travels
    assert [report.target for report in children.reports()] == ["train.py"]
    assert not os.path.exists(folder)
    assert children.reports() == []


def trained(steps, name="", precision="fp32"):
    environment = {"rank": name} if name else {}
    loop = Loop(steps=steps)
    return Report("train.py", precision, 0, Trace(), Trace(), loop=loop, environment=environment)


def test_reports_are_named_by_rank_or_by_their_order():
    own = trained(0)
    both = joined(own, [trained(3, "rank 1"), trained(3, "rank 0"), trained(0)])
    assert [rank.name for rank in both.ranks] == ["rank 0", "rank 1"]
    assert "rank" not in both.environment
    alike = joined(own, [trained(3), trained(2)])
    assert [rank.name for rank in alike.ranks] == ["process 1", "process 2"]
    alone = joined(own, [trained(3, "rank 0")])
    assert (alone.ranks, alone.loop.steps) == ((), 3)


def test_a_script_that_trains_itself_is_told_of_and_others_are_named():
    own = trained(2)
    assert joined(own, [trained(0)]) == own
    with_others = joined(own, [trained(3)])
    assert replace(with_others, notes=(), verdict=own.verdict) == own
    assert "1 of the processes" in with_others.notes[0]


def test_reports_that_cannot_be_added_leave_the_first_and_a_note():
    whole = joined(trained(0), [trained(3, "rank 0"), trained(3, "rank 1", "bf16")])
    assert whole.precision == "fp32"
    assert any("cannot be added" in note for note in whole.notes)


def test_processes_that_have_nothing_to_do_with_torch_are_not_told_of(tmp_path):
    (tmp_path / "start.py").write_text(
        "import multiprocessing, operator, sys\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=operator.add, args=(1, 2))\n"
        "    import torch\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    watched = python("-m", "ampcheck", "run", "-o", "out.json", "start.py", cwd=tmp_path)
    assert watched.returncode == 2  # nothing was trained
    assert read(tmp_path / "out.json").loop.children == 0


def test_workers_that_load_data_are_left_alone(tmp_path):
    (tmp_path / "load.py").write_text(
        "import torch\n"
        "data = torch.utils.data.DataLoader(torch.arange(8.).reshape(4, 2), num_workers=2)\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x in data:\n"
        "    model(x).sum().backward()\n"
        "    optimizer.step()\n"
    )
    watched = python("-m", "ampcheck", "run", "-o", "out.json", "load.py", cwd=tmp_path)
    assert watched.returncode == 0, watched.stderr
    report = read(tmp_path / "out.json")
    assert (report.loop.steps, report.loop.children) == (4, 0)
    assert not any("process" in note for note in report.notes)
