"""The dispatch mode that runs operations a second time, on the references of their inputs."""

from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.modes import OwnMode, Way, way
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.statistics.memory import tensors_of

_current_node = torch._C._current_autograd_node
#: What torch calls the kernel of an operation that is made of others.
_OF_OTHERS = "CompositeImplicitAutograd"


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

    def in_parts(self, func: Any, args: Args, kwargs: Kwargs) -> list[Any]:
        """Return what an operation gives that is made of others, which run here one by one as they do elsewhere.

        Without autograd, in inference mode or on tensors from there, such an operation arrives whole.
        """
        whole = torch.is_inference_mode_enabled() or any(one.is_inference() for one in tensors_of(args))
        one = whole and isinstance(func, torch._ops.OpOverload)
        if not (one and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _OF_OTHERS)):
            return []
        _push_mode(self)
        try:
            return [func.decompose(*args, **kwargs)]
        finally:
            _pop_mode()
