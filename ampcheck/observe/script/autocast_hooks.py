"""Where a watcher hears of regions of autocast."""

from collections.abc import Callable
from typing import Any

import torch

from ampcheck.observe.script.journal import dtype_name
from ampcheck.observe.script.watcher import Watcher
from ampcheck.values.loop import UNCACHED, Kind

_current_node = torch._C._current_autograd_node


def made(  # torch's own signature
    watcher: Watcher,
    original: Callable[..., Any],
    self: Any,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,  # noqa: FBT001, FBT002
    *rest: Any,
    **more: Any,
) -> None:
    """Hear of a region of autocast that is made."""
    watcher.asked = watcher.asked or bool(enabled)
    original(self, device_type, dtype, enabled, *rest, **more)
    if enabled and not self._enabled:
        watcher.off.add(self)


def region(watcher: Watcher, kind: Kind, original: Callable[..., Any], self: Any, *args: Any) -> Any:
    """Hear of the beginning or the end of a region of autocast."""
    inside = watcher.roots.inside or _current_node() is not None
    if not inside and kind is Kind.AUTOCAST_END:
        watcher.note(kind)
    out = original(self, *args)
    if not inside and kind is Kind.AUTOCAST:
        off = dtype_name(self.fast_dtype) if self in watcher.off and not self._enabled else ""
        kept = "" if torch.is_autocast_cache_enabled() else UNCACHED
        watcher.note(kind, name=f"{self.device}{kept}", dtype=off)
        if self._enabled:
            watcher.casts()
    return out
