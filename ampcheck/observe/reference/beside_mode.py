"""The dispatch mode that runs operations a second time, on the references of their inputs."""

from typing import Any

import torch

from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.modes import OwnMode, Way, way
from ampcheck.observe.reference.shadow import Shadow

_current_node = torch._C._current_autograd_node


class BesideMode(OwnMode):
    """Lets every operation run as it is, and then what is followed."""

    over = (WideCompute,)

    def __init__(self, references: Shadow) -> None:
        super().__init__()
        self._references = references

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        """Run an operation, and its reference where it has one."""
        if types and (found := way(types)) is not Way.RECORDED:
            return NotImplemented if found is Way.APART else func(*args, **(kwargs or {}))
        if self.skips():
            return func(*args, **(kwargs or {}))
        return self._references.run(func, args, kwargs or {})

    def skips(self) -> bool:
        """Tell whether an operation runs as it is, and nothing else."""
        return _current_node() is not None
