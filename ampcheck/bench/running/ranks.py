"""Ranks: a case is timed by several processes under torchrun, each with its share of DDP or FSDP2."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ampcheck.bench import saved
from ampcheck.bench.result import Case
from ampcheck.bench.running.arms import rebound
from ampcheck.bench.running.precisions import Precision
from ampcheck.bench.running.settings import blocks
from ampcheck.errors import AmpcheckError
from ampcheck.targets.spec import Target

#: Where rank 0 of a run that this bench has launched writes its result.
RESULT = "AMPCHECK_BENCH_RANKS_RESULT"
#: A rank that waits so long for another one gives up: the other one has failed.
PATIENCE = timedelta(seconds=120)
#: Lines of a failed run that are shown.
_SHOWN = 5
_ERROR = re.compile(r"ampcheck: error: |[\w.]*(Error|Exception)\b")


class Joined:
    """Tells whether this process times its steps together with other ranks."""

    yes = False


@contextmanager
def joined() -> Iterator[bool]:
    """Join the ranks of torchrun, where it has launched this process; yield whether this rank reports."""
    if not distributed.is_torchelastic_launched():
        yield True
        return
    kind = "cpu:gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        kind += ",cuda:nccl"
    distributed.init_process_group(kind, timeout=PATIENCE)
    Joined.yes = True
    try:
        yield distributed.get_rank() == 0
    finally:
        Joined.yes = False
        distributed.destroy_process_group()


def size() -> int:
    """Return how many ranks time a step together."""
    return distributed.get_world_size() if Joined.yes else 1


def slowest(seconds: float) -> float:
    """Return the seconds of the slowest rank: a step is over when all have made it."""
    if not Joined.yes:
        return seconds
    shared = torch.tensor(seconds, dtype=torch.float64)
    distributed.all_reduce(shared, distributed.ReduceOp.MAX)
    return float(shared)


def shared(target: Target, case: Case, chosen: Precision) -> tuple[Target, Precision]:
    """Return the target as one of several ranks runs it; FSDP2 has a policy of its own in autocast's place."""
    if not Joined.yes:
        return target, chosen
    if case.parallel == "fsdp2":
        return _sharded(target, chosen.dtype), replace(chosen, dtype=None)
    ids = [torch.cuda.current_device()] if next(target.model.parameters()).is_cuda else None
    return replace(target, model=torch.nn.parallel.DistributedDataParallel(target.model, ids)), chosen


def _sharded(target: Target, dtype: torch.dtype | None) -> Target:
    """Return a target whose model is sharded; an optimizer that was made before has the shards in its groups."""
    whole = dict(target.model.named_parameters())
    _shard(target.model, dtype)
    pairs = [(whole[name], shard) for name, shard in target.model.named_parameters()]
    return rebound(target, pairs)


def _shard(model: Any, dtype: torch.dtype | None) -> None:
    """Shard a model block by block: computed in a dtype, reduced in FP32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    full = torch.float32 if dtype is not None else None
    inside = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=full)
    for block in blocks(model):
        fully_shard(block, mp_policy=inside)
    # Within the model what leaves a block stays as it is: layers outside of blocks have their weights in that dtype.
    fully_shard(model, mp_policy=replace(inside, output_dtype=full))


def launched(words: Sequence[str], case: Case) -> Case:
    """Return a case that torchrun's processes have measured; `words` repeat it on the command line."""
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranks.json"
        done = subprocess.run(  # noqa: S603  # this program, with the words it was given
            [sys.executable, "-m", *torchrun, "-m", "ampcheck", *words],
            check=False, capture_output=True, text=True, env={**os.environ, RESULT: str(path)},
        )  # fmt: skip
        if path.exists():
            return saved.read(path).cases[0]
    raise AmpcheckError(f"{case.ranks} ranks ended with status {done.returncode}: {_reason(done.stderr)}")


def _reason(printed: str) -> str:
    """Return the first error that a rank printed; torchrun's own account of it follows, and says less."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.match(line)), " ".join(lines[-_SHOWN:]))
