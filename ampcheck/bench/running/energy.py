"""The energy that a GPU has taken, where its driver counts it."""

from importlib import import_module

import torch

MILLI = 1e-3


class _UncountedError(Exception):
    """Nobody counts the energy of a device, for this reason."""


def joules(device: torch.device) -> float | None:
    """Return the joules a GPU has taken since its driver was loaded; None where nobody counts them."""
    try:
        return _read(device)
    except _UncountedError:
        return None


def uncounted(device: torch.device) -> str:
    """Return why nobody counts the energy of a GPU; "" where somebody does, and elsewhere than on a GPU."""
    try:
        _read(device)
    except _UncountedError as reason:
        return str(reason)
    return ""


def _read(device: torch.device) -> float:
    if device.type != "cuda":
        raise _UncountedError
    try:
        pynvml = import_module("pynvml")
    except ImportError as error:  # comes with nvidia-ml-py
        raise _UncountedError("nvidia-ml-py is not installed: pip install 'ampcheck[gpu]'") from error
    try:
        pynvml.nvmlInit()
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return float(
            MILLI * pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(name))
        )
    except pynvml.NVMLError as error:  # an older GPU, or a container that hides it
        raise _UncountedError(f"the GPU's driver does not count it ({error})") from error
