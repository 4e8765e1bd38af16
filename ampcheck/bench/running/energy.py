"""The energy that a GPU has taken, where its driver counts it."""

from importlib import import_module

import torch

MILLI = 1e-3


def joules(device: torch.device) -> float | None:
    """Return the joules a GPU has taken since its driver was loaded; None where nobody counts them."""
    if device.type != "cuda":
        return None
    try:
        pynvml = import_module("pynvml")
    except ModuleNotFoundError:  # comes with nvidia-ml-py
        return None
    try:
        pynvml.nvmlInit()
        name = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return float(
            MILLI * pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(name))
        )
    except pynvml.NVMLError:  # an older GPU, or a container that hides it
        return None
