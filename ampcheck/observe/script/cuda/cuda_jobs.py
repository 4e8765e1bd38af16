"""Jobs of several processes, and models spread over GPUs, where a CPU stands in for CUDA: gloo instead of NCCL."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ampcheck.observe.patches import Original, Patches

Mapped = Callable[[Any], Any]  #: from a device to the one that stands in for it


def jobs_on_cpu(patches: Patches, mapped: Mapped) -> None:
    """Let what is written for many GPUs run on CPUs."""
    # Its function hides the module's name.
    spread = importlib.import_module("torch.nn.parallel.data_parallel")
    patches.set(spread, "_get_available_device_type", lambda: None)
    if not torch.distributed.is_available():
        return
    patches.put(DistributedDataParallel, "__init__", _without_devices)
    # It runs on GPUs only; a rank then takes the statistics of its own part of the batch.
    patches.set(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)
    patches.set(SyncBatchNorm, "forward", _BatchNorm.forward)
    mesh = torch.distributed.device_mesh
    for owner in (torch.distributed, torch.distributed.distributed_c10d, mesh):
        patches.put(owner, "init_process_group", functools.partial(_job, mapped))
    for owner in (torch.distributed, torch.distributed.distributed_c10d):
        patches.put(owner, "new_group", functools.partial(_group, mapped))
        patches.put(owner, "barrier", _barrier)
    for owner in (mesh, torch.distributed):
        patches.put(owner, "init_device_mesh", functools.partial(_on_mesh, mapped))
    patches.put(mesh.DeviceMesh, "__init__", functools.partial(_mesh, mapped))


def _without_devices(
    original: Original,
    self: Any,
    module: Any,
    device_ids: Any = None,
    output_device: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    del device_ids, output_device
    original(self, module, None, None, *args, **kwargs)


def _job(mapped: Mapped, original: Original, backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    return _group(mapped, original, backend or "gloo", *args, **kwargs)


def _group(mapped: Mapped, original: Original, *args: Any, **kwargs: Any) -> Any:
    args = tuple(_backend(value) for value in args)
    if "backend" in kwargs:
        kwargs["backend"] = _backend(kwargs["backend"])
    if kwargs.get("device_id") is not None:
        mapped(kwargs.pop("device_id"))
    return original(*args, **kwargs)


def _backend(value: Any) -> Any:
    return "gloo" if isinstance(value, str) and "nccl" in value.lower() else value


def _barrier(original: Original, *args: Any, device_ids: Any = None, **kwargs: Any) -> Any:
    del device_ids  # gloo has none
    return original(*args, **kwargs)


def _on_mesh(mapped: Mapped, original: Original, device_type: str, *args: Any, **kwargs: Any) -> Any:
    return original(str(mapped(device_type)), *args, **kwargs)


def _mesh(mapped: Mapped, original: Original, self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
    original(self, str(mapped(device_type)), *args, **kwargs)
