"""Other tools on the same steps, where they are installed; each is put on for one step and taken off."""

import contextlib
import importlib.util
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import Workload


class Idle(TorchDispatchMode):
    """A dispatch mode that does nothing: less than this no recorder of operations can cost."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def five_numbers(tensor: torch.Tensor) -> tuple[float, ...]:
    """Return statistics as people write them."""
    finite = torch.isfinite(tensor)
    return (
        tensor.abs().max().item(),
        tensor.float().mean().item(),
        tensor.float().std().item(),
        (tensor == 0).float().mean().item(),
        (~finite).sum().item(),
    )


@contextlib.contextmanager
def naive(model: torch.nn.Module) -> Iterator[None]:
    """Take five numbers of each module's output and its gradient, with `.item()`."""

    def left(_module: Any, _args: Any, out: Any) -> None:
        for tensor in out if isinstance(out, tuple) else (out,):
            five_numbers(tensor.detach())
            if tensor.requires_grad:
                tensor.register_hook(lambda grad: five_numbers(grad) and None)

    handles = [module.register_forward_hook(left) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def hugging_face(model: torch.nn.Module) -> Iterator[None]:
    """Let transformers look for overflow in each module's weights, inputs and outputs; it has no way out."""
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {module: dict(module._forward_hooks) for module in model.modules()}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            DebugUnderflowOverflow(model)
            yield
    finally:
        for module, hooks in before.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)


@contextlib.contextmanager
def idle_with_hooks() -> Iterator[None]:
    """Add to the idle mode what tells which module runs: hooks around each module's call, that do nothing."""
    handles = [
        register_module_forward_pre_hook(lambda _module, _args: None),
        register_module_forward_hook(lambda _module, _args, _out: None, always_call=True),
    ]
    try:
        with Idle():
            yield
    finally:
        for handle in handles:
            handle.remove()


def torchlens(workload: Workload) -> Callable[[], object] | None:
    """Return torchlens' trace of the forward, which keeps a copy of every result and knows no backward.

    It wraps torch's functions for the rest of the process, so it is to be the last that is timed.
    """
    if importlib.util.find_spec("torchlens") is None:
        return None
    from torchlens import trace

    taken: list[tuple[Any, ...]] = []
    handle = workload.model.register_forward_pre_hook(lambda _module, args: taken.append(args))
    workload.step()
    handle.remove()
    return lambda: trace(workload.model, taken[0])


def peers(workload: Workload) -> dict[str, Callable[[], object]]:
    """Return the steps under each tool that there is."""

    def under(context: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            with context():
                workload.step()

        return run

    found = {
        "idle": under(Idle),
        "idle, hooks": under(idle_with_hooks),
        "anomaly": under(lambda: torch.autograd.set_detect_anomaly(mode=True)),
        "naive": under(lambda: naive(workload.model)),
    }
    if importlib.util.find_spec("transformers") is not None:
        found["hugging face"] = under(lambda: hugging_face(workload.model))
    return found
