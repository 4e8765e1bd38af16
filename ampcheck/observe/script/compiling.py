"""What torch.compile has compiled, run eagerly where a step is recorded: nothing can be seen inside of a graph."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

import ampcheck
from ampcheck.observe.patches import Patches

_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
#: No part of a graph, where a script compiles a whole step: but for the hooks on modules, which know by themselves.
_FILES = {str(file) for file in Path(ampcheck.__file__).parent.rglob("*.py") if file.name != "roots.py"}
_TABLES = (
    *(module_hooks._global_backward_pre_hooks, module_hooks._global_backward_hooks),
    *(module_hooks._global_forward_pre_hooks, module_hooks._global_forward_hooks),
)


class Compiler:
    """torch's compiler, which can be paused."""

    def __init__(self) -> None:
        self.asked = 0  #: how often something was to be compiled
        #: What takes away for a while what was put into torch, in the order in which that was done.
        self.plain: list[Callable[[], AbstractContextManager[None]]] = []
        #: Whether nothing at all can be compiled, as where the CPU stands in for CUDA.
        self.useless: Callable[[], bool] = lambda: False
        self._stance: Any = None  #: the one that the script has, while ours is in force

    def begins(self) -> None:
        """Take note of something that is to be compiled: first torch as it is becomes known to the compiler.

        It keeps what it finds under each of torch's names for as long as the process lives.
        """
        self.asked += 1
        if self.asked > 1:
            return
        from torch._dynamo import trace_rules
        from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

        trace_rules.FORCE_SKIP_FILES.update(_FILES)

        with ExitStack() as stack:
            for paused in reversed(self.plain):
                stack.enter_context(paused())
            trace_rules.get_torch_obj_rule_map()
            trace_rules.get_tensor_method()
            TorchInGraphFunctionVariable._get_handlers()

    def wait(self, wanted: bool) -> None:  # noqa: FBT001  # yes or no is all there is to say
        """Let what is compiled run eagerly from here on, or as always."""
        # What was never loaded has compiled nothing, and loading it takes a second.
        eager = "torch._dynamo" in sys.modules and (wanted or self.useless())
        if eager and self._stance is None:
            self._stance = _take_stance(None)
        elif not eager:
            self.free()

    def forget(self) -> None:
        """Leave the compiler as it was."""
        self.free()
        if self.asked:
            from torch._dynamo import trace_rules

            trace_rules.FORCE_SKIP_FILES.difference_update(_FILES)

    def free(self) -> None:
        """Let the compiler work as always."""
        stance, self._stance = self._stance, None
        if stance is not None:
            _take_stance(stance)


def _take_stance(stance: Any) -> Any:
    """Change what the compiler does from its next call on, None for nothing; return what it has done until now.

    The public set_stance refuses to where something compiled is running: a step may end inside of that.
    """
    from torch._dynamo import eval_frame

    before = eval_frame._stance
    eval_frame._stance = eval_frame.DynamoStance("force_eager") if stance is None else stance
    return before


def hooks_of_others(ours: tuple[type, ...], original: Callable[[], Any]) -> Any:
    """Tell whether hooks are set on all modules, but for ours: a compiled module would warn of them."""
    held = (hook for table in _TABLES for hook in table.values())
    others = (hook for hook in held if not isinstance(getattr(hook, "__self__", None), ours))
    return original() and next(others, None)


def let_modes_stay(patches: Patches) -> None:
    """Keep modes in force that are entered, or left, while something compiled is running.

    After each call of it torch puts back what it dispatched by before.
    """
    if hasattr(torch._C, "_dynamo_restore_local_dispatch_key_set"):
        depths: list[int] = []
        patches.put(torch._C, "_dynamo_save_local_dispatch_key_set", functools.partial(_save, depths))
        patches.put(torch._C, "_dynamo_restore_local_dispatch_key_set", functools.partial(_restore, depths))
    else:
        patches.put(torch._C, "_ForceDispatchKeyGuard", _guard)


def _save(depths: list[int], original: Callable[[], Any]) -> Any:
    depths.append(torch._C._len_torch_dispatch_stack())
    return original()


def _restore(depths: list[int], original: Callable[[], Any]) -> Any:
    out = original()
    if depths:  # empty where the call began before we did
        _heed_modes(depths.pop())
    return out


@contextmanager
def _guard(original: Callable[..., AbstractContextManager[Any]], *keys: Any) -> Iterator[Any]:
    depth = torch._C._len_torch_dispatch_stack()
    with original(*keys) as held:
        yield held
    _heed_modes(depth)


def _heed_modes(depth: int) -> None:
    """Dispatch through modes if there are any, where their number is not what it was."""
    now = torch._C._len_torch_dispatch_stack()
    if now != depth:
        for key in _KEYS:
            torch._C._dispatch_tls_set_dispatch_key_included(key, now > 0)
