"""What other threads of a script write while states are followed."""

from collections.abc import Callable
from typing import Any

import torch

from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.script.state.half_state import Following
from ampcheck.observe.script.watched_thread import WatchedThread

#: What writes a tensor in a thread of the script's own, beside the functions of torch for several tensors at once.
_WRITES = (
    """add_ sub_ mul_ div_ lerp_ addcmul_ addcdiv_ copy_ __iadd__ __isub__ __imul__ __itruediv__""".split()
)


class OtherThreads:
    """Hears what writes tensors in other threads than the one that trains."""

    def __init__(self, thread: WatchedThread, following: Callable[[], Following | None]) -> None:
        """Hear nothing yet; `following` returns what is followed."""
        self._thread, self._following = thread, following
        self._patches = Patches()

    def hear(self) -> None:
        """Hear of what they write from now on."""
        each = [name for name in vars(torch) if name.startswith("_foreach_") and name.endswith("_")]
        for owner, names in ((torch.Tensor, _WRITES), (torch, each)):
            for name in names:
                self._patches.put(owner, name, self._writes)

    def leave(self) -> None:
        """Hear no more."""
        self._patches.restore()

    def _writes(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        following = self._following()
        if following is None or self._thread.runs:
            return original(*args, **kwargs)
        with following.elsewhere():
            return original(*args, **kwargs)
