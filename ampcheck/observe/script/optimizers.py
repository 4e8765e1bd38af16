"""What is asked of an optimizer."""

from typing import Any

import torch

from ampcheck.observe.script.journal import dtype_name


def parameters_of(optimizer: Any) -> list[Any]:
    """Return what it updates."""
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def described(optimizer: Any) -> dict[str, str | float | bool]:
    """Return what rules ask of an optimizer: the dtypes it updates, whether it is fused, and its smallest eps."""
    dtypes = {dtype_name(p.dtype) for p in parameters_of(optimizer) if isinstance(p, torch.Tensor)}
    fused = any(bool(group.get("fused")) for group in optimizer.param_groups)
    eps = [group["eps"] for group in optimizer.param_groups if isinstance(group.get("eps"), float)]
    found: dict[str, str | float | bool] = {"dtypes": " ".join(sorted(dtypes)), "fused": fused}
    return found | ({"eps": min(eps)} if eps else {})
