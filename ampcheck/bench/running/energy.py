"""The energy that a GPU has taken, where its driver counts it."""

from importlib import import_module

import torch

MILLI = 1e-3


def joules(device: torch.device) -> float | None:
    """Return the joules a GPU has taken since its driver was loaded; None where nobody counts them."""
    found = _read(device)
    return found if isinstance(found, float) else None


def uncounted(device: torch.device) -> str:
    """Return why nobody counts the energy of a GPU; "" where somebody does, and elsewhere than on a GPU."""
    found = _read(device)
    return found if isinstance(found, str) else ""


def _read(device: torch.device) -> float | str:
    """Return the joules, or why nobody counts them."""
    if device.type != "cuda":
        return ""
    try:
        pynvml = import_module("pynvml")
    except ImportError:  # comes with nvidia-ml-py
        return "nvidia-ml-py is not installed: pip install 'ampcheck[gpu]'"
    try:
        pynvml.nvmlInit()
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return float(
            MILLI * pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(name))
        )
    except pynvml.NVMLError as error:  # an older GPU, or a container that hides it
        return f"the GPU's driver does not count it ({error})"
