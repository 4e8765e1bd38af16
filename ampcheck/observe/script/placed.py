"""A recorder of a step that FP32 runs beside."""

from typing import Any

import torch

from ampcheck.observe.recorder import Recorder


class Placed(Recorder):
    """A recorder that tells which module the running operation belongs to."""

    @property
    def module_now(self) -> str:
        """Return that module: of the forward, or of the node that runs in the backward."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return self.tracker.path(self._where.current)
        return self.whose(node).module
