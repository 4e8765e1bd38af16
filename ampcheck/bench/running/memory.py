"""Memory that was really used: on a GPU by its allocator, on Linux by the process's high-water mark."""

import ctypes
import gc
import sys
from pathlib import Path

import torch

from ampcheck.bench.ledger import BLOCK
from ampcheck.bench.running.arms import Arm
from ampcheck.observe.step import clear_gradients

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def cpu_peak(arm: Arm) -> tuple[int | None, str]:
    """Return the peak of a training step on this CPU and how it is known, or None and why it is not.

    The peak is what the step added to the resident memory before it, with the model's own tensors. Call it
    after an update was applied, so that the optimizer's state exists. The gradients of that update are dropped
    first: the step makes its own.
    """
    if arm.device.type != "cpu" or not _RESET.exists():
        return None, "the high-water mark of memory can be reset on Linux only"
    with arm.running():
        clear_gradients(arm.target.model)
        gc.collect()
        _trim()
        before = _kib("VmRSS")
        try:
            _RESET.write_text(_FORGET_PEAK, encoding="ascii")
        except OSError as error:
            return None, f"the high-water mark of memory cannot be reset here: {error.strerror}"
        arm.train()
        grown = _kib("VmHWM") - before
    held = {id(tensor): tensor.numel() * tensor.element_size() for tensor in arm.held()}
    return max(grown, 0) * 1024 + sum(held.values()), "high-water mark of the process"


def cuda_peak(arm: Arm) -> tuple[int, int, int]:
    """Return peak allocated and reserved bytes and allocation retries of a step on a GPU.

    What others hold there does not count: it is known before the step, in both figures. The gradients of the
    update before are dropped first, and everything the allocator keeps in store is given back.
    """
    device = arm.device
    with arm.running():
        clear_gradients(arm.target.model)
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        own = _bytes(arm)
        others = torch.cuda.memory_allocated(device) - own
        kept = torch.cuda.memory_reserved(device) - own
        retries = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
        arm.train()
        torch.cuda.synchronize(device)
    stats = torch.cuda.memory_stats(device)
    allocated = torch.cuda.max_memory_allocated(device) - others
    # Beside others some of the pages are shared, so their part can only be subtracted as a whole.
    reserved = torch.cuda.max_memory_reserved(device) - (kept if others > 0 else 0)
    return allocated, max(reserved, allocated), stats.get("num_alloc_retries", 0) - retries


def empty_cache(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _bytes(arm: Arm) -> int:
    from ampcheck.targets.nested import tensors

    held = [*arm.held(), *(leaf for batch in arm.target.batches for leaf in tensors(batch))]
    there = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held if t.device == arm.device}
    return sum(-(-size // BLOCK) * BLOCK for size in there.values())


def _kib(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"no {name} in {_STATUS}")


def _trim() -> None:
    """Give free memory back to the system: what is still resident would hide what a step needs."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in every C library
    if trim is not None:
        trim(0)
