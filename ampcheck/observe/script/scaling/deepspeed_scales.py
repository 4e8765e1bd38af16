"""The loss scalers of DeepSpeed's ZeRO optimizers, which scale, divide and skip by themselves.

Their scale and the steps that they skip are seen here. What they divide is not: ZeRO moves gradients elsewhere.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from ampcheck.observe.patches import Patches
from ampcheck.observe.script.watcher import Watcher

#: The module that has them.
MODULE = "deepspeed.runtime.fp16.loss_scaler"


def hear_scales(patches: Patches, watcher: Watcher) -> None:
    """Listen to the updates of their scale, once their module is there."""
    for name in ("LossScalerBase", "DynamicLossScaler"):
        kind = getattr(sys.modules[MODULE], name, None)
        if "update_scale" in vars(kind or object):
            patches.put(kind, "update_scale", functools.partial(_update_scale, watcher))


def _update_scale(watcher: Watcher, original: Callable[..., Any], self: Any, overflow: Any) -> Any:
    before = self.cur_scale
    out = original(self, overflow)
    if before != 1.0 or getattr(self, "dynamic", False):  # it is there in bf16 too, and does nothing
        watcher.rescaled(self, before, self.cur_scale, overflow)
    return out
