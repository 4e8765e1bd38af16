"""What scripts ask of CUDA besides a device: numbers of GPUs, tensor types, many-GPU wrappers, streams, NCCL."""

import os
import subprocess
import sys
import threading

import forked
import pytest
import torch
from torch.utils import _triton as triton
from torch.utils.checkpoint import checkpoint

from ampcheck.observe.cuda_on_cpu import emulation
from ampcheck.observe.script.cuda.as_cuda import AsCuda
from ampcheck.run.session import Session
from ampcheck.saved.report_json import read
from ampcheck.values.settings import Schedule

LOOP = """
import os, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
device = torch.device("cuda")
x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
{before}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for _ in range(3):
    with torch.autocast("cuda", torch.float16):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
    assert out.dtype is torch.float16
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("trained")
{after}
"""

IDIOMS = {
    "names from where they are made": (
        "from torch.cuda.random import get_rng_state; from torch.cuda import memory, streams",
        "streams.Event(enable_timing=True).record(); assert get_rng_state().numel() and not memory.memory_allocated()",
    ),
    "the number of a GPU": (
        "model.to(0); x, y = x.to(0), y.to(device=0); x.new_zeros(3, 2); torch.ones(2, device=0)",
        "",
    ),
    "a tensor type": (
        (
            "Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor\n"
            "assert Tensor(2, 3).fill_(1.0).sum() == 6\n"
            "x = x.type(torch.cuda.FloatTensor)\n"
            "y = y.type(torch.cuda.LongTensor)"
        ),
        "",
    ),
    "DataParallel": ("model = nn.DataParallel(model.to(device)); torch.backends.cudnn.benchmark = True", ""),
    "DistributedDataParallel over NCCL": (
        (
            "import torch.distributed as dist\n"
            "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1')\n"
            "dist.init_process_group('nccl', device_id=torch.device('cuda:0'))\n"
            "torch.cuda.set_device(0)\n"
            "model = nn.parallel.DistributedDataParallel(model.cuda(0), device_ids=[0], output_device=0)\n"
            "dist.barrier(device_ids=[0])"
        ),
        "dist.destroy_process_group()",
    ),
    "a device mesh": (
        (
            "from torch.distributed.device_mesh import init_device_mesh\n"
            "import torch.distributed as dist\n"
            "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1')\n"
            "assert init_device_mesh('cuda', (1,)).size() == 1"
        ),
        "dist.destroy_process_group()",
    ),
    "streams and events": (
        (
            "start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)\n"
            "start.record()\n"
            "with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()): x = x.cuda(non_blocking=True)\n"
            "torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())\n"
            "while not end.query(): pass\n"
            "start.elapsed_time(end)\n"
            "torch.cuda.nvtx.range_push('step'); torch.cuda.nvtx.range_pop()"
        ),
        "",
    ),
    "what kind of GPU it is": (
        (
            "assert torch.cuda.is_available() and torch.cuda.device_count() == 1\n"
            "assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == 'cuda'\n"
            "torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_capability()\n"
            "torch.cuda.memory_summary(), torch.cuda.mem_get_info(), torch.cuda.memory_stats()\n"
            "torch.cuda.reset_peak_memory_stats(); torch.cuda.manual_seed_all(0)"
        ),
        "",
    ),
    "pinned memory": (
        (
            "data = torch.utils.data.TensorDataset(x, y)\n"
            "x, y = next(iter(torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)))\n"
            "torch.empty(2, pin_memory=True)\n"
            "x = x.pin_memory().to(device, non_blocking=True)"
        ),
        "",
    ),
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_a_cpu_stands_in_for_what_scripts_ask_of_cuda(tmp_path, idiom):
    before, after = IDIOMS[idiom]
    (tmp_path / "train.py").write_text(LOOP.format(before=before, after=after))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*forked.python(), "-m", "ampcheck", "run", "--as-cuda", "-o", "r.json", "train.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "trained\n"), run.stderr
    report = read(tmp_path / "r.json")
    assert (report.precision, report.loop.steps) == ("fp16", 3)
    assert [finding.code for finding in report.findings if finding.severity != "info"] == []


def test_a_checkpoint_is_read_however_its_file_is_named(tmp_path):
    place = tmp_path / "weights.pt"
    torch.save({"w": torch.arange(3.0)}, place)
    with Session(Schedule(), as_cuda=True).watching():
        read = [torch.load(place, "cuda"), torch.load(f=place, map_location="cuda:0"), torch.load(f=place)]
    assert [one["w"].tolist() for one in read] == [[0.0, 1.0, 2.0]] * 3


def test_the_compiler_finds_no_name_of_torch_twice():
    from torch._dynamo import trace_rules

    rules = trace_rules.get_torch_obj_rule_map
    stand_in = AsCuda(available=True)
    try:
        rules.cache_clear()
        assert torch.cuda.is_available in rules()  # it raises where one object stands under two names
    finally:
        stand_in.close()
        rules.cache_clear()


def test_what_torch_keeps_of_the_stand_in_is_forgotten_with_it():
    with Session(Schedule(), as_cuda=True).watching():
        assert torch.cuda.is_available()
        triton.has_triton()
    assert not triton.has_triton()


def test_threads_that_enter_their_first_regions_at_once_all_cast(recwarn):
    """A barrier lets all of them begin before any is done with CUDA's rules."""
    together, products = threading.Barrier(4), []

    def multiply():
        a = torch.full((2, 2), 0.1)
        together.wait()
        with torch.autocast("cuda", dtype=torch.float16):
            products.append(a @ a)

    emulation._kernels.cache_clear()  # as in a new process
    with Session(Schedule(), as_cuda=True).watching():
        threads = [threading.Thread(target=multiply) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    half = torch.full((2, 2), 0.1).half().float()
    assert [one.dtype for one in products] == [torch.float16] * 4
    assert all(one.equal((half @ half).half()) for one in products)
    assert not list(recwarn)


@pytest.mark.parametrize("first", ["main", "thread"])
def test_halves_are_computed_as_on_a_gpu_in_every_thread(first):
    """The CPU has no half kernel of this: FP32 on the same numbers, rounded, is what a GPU gives."""
    points, found = torch.rand(3, 2).half(), []

    def distances():
        if first == "thread":
            with torch.autocast("cuda"):
                pass
        found.append(torch.cdist(points, points))

    with Session(Schedule(), as_cuda=True).watching():
        if first == "main":
            with torch.autocast("cuda"):
                pass
        thread = threading.Thread(target=distances)
        thread.start()
        thread.join()
        if first == "main":
            distances()
    wide = points.float()
    assert len(found) == 1 + (first == "main")
    assert all(one.equal(torch.cdist(wide, wide).half()) for one in found)


def test_a_model_whose_sizes_are_not_known_yet_moves_to_a_gpu():
    """Torch lets a lazy module do what a list of its functions names, and tells these apart by identity."""
    allowed = [*torch.nn.parameter.UninitializedTensorMixin._allowed_methods]
    with Session(Schedule(), as_cuda=True).watching():
        layer = torch.nn.LazyLinear(4).to("cuda")
        assert layer(torch.ones(2, 3)).shape == (2, 4)
    assert torch.nn.parameter.UninitializedTensorMixin._allowed_methods == allowed


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_region_of_the_cpus_own_is_none_of_cudas(reentrant):
    """A checkpoint asks for the regions of both devices, and enters them again when it computes anew."""

    def gradient() -> torch.Tensor:
        torch.manual_seed(0)
        layer, x = torch.nn.Linear(16, 64), torch.randn(8, 16, requires_grad=True)
        with torch.autocast("cpu", torch.float16):
            assert not torch.is_autocast_enabled("cuda")
            checkpoint(lambda it: layer(it).square(), x, use_reentrant=reentrant).sum().backward()
        return layer.weight.grad

    alone = gradient()
    with Session(Schedule(), as_cuda=True).watching():
        assert gradient().equal(alone)
        assert not AsCuda.now.emulating
