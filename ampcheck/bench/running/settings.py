"""A target put into one setting of a sweep: checkpointing, memory format, the compiler."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ampcheck.bench.request import ATTENTION, scaler_of
from ampcheck.bench.result import Case
from ampcheck.bench.running.arms import optimizer_of
from ampcheck.bench.running.precisions import Precision
from ampcheck.errors import TargetError
from ampcheck.observe.model.structure import children, modules
from ampcheck.targets.nested import mapped, tensors
from ampcheck.targets.spec import Target

_TABLE = 2  #: dimensions of a batch of sequences
_IMAGES = 4  #: dimensions of a tensor that has channels_last
#: So many children of one class in a container are blocks of a repeated body.
_REPEATED = 2


def put(target: Target, case: Case) -> Target:
    """Return the target in the setting of a case; the compiler is left to `compiled`."""
    if case.mode == "infer":
        target.model.eval()
    if case.checkpointing:
        _checkpoint(target.model)
    if case.channels_last:
        target.model.to(memory_format=torch.channels_last)
        target = replace(target, batches=[mapped(_last, batch) for batch in target.batches])
    if case.optimizer:
        target = replace(target, optimizer=partial(_optimizer, target, case.optimizer))
    return replace(target, loss=_attending(target, case.attention)) if case.attention else target


def compiled(target: Target, case: Case) -> Target:
    """Return the target with its model compiled, where the case asks for it."""
    if not case.compiled:
        return target
    return replace(target, model=torch.compile(target.model, mode=case.compile_mode or None))


def scaled(chosen: Precision, case: Case) -> Precision:
    """Return the precision with the scaler of the case, where both have one."""
    if not case.scaler:
        return chosen
    scale, interval = scaler_of(case.scaler)
    return chosen.scaling(init_scale=scale, growth_interval=interval)


def _optimizer(target: Target, kind: str, model: Any) -> torch.optim.Optimizer:
    """Return the target's optimizer, made again to update its parameters in another way."""
    made = optimizer_of(target, model)
    fused, foreach = kind == "fused", kind == "foreach"
    groups = [{**group, "fused": fused, "foreach": foreach} for group in made.param_groups]
    try:
        return type(made)(groups, fused=fused, foreach=foreach)  # type: ignore[call-arg]
    except (TypeError, RuntimeError) as error:
        name = type(made).__name__
        raise TargetError(
            f"expected an optimizer that has a {kind} form, {name} has none: {error}"
        ) from error


def _attending(target: Target, backend: str) -> Callable[[Any, Any], torch.Tensor]:
    """Return the target's loss with one backend of attention; the backward follows its forward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, ATTENTION[backend])

    def loss(model: Any, batch: Any) -> torch.Tensor:
        with sdpa_kernel(chosen):
            return target.loss(model, batch)

    return loss


def tokens(target: Target) -> int:
    """Return the number of tokens in a batch: whole numbers in a table of samples and places; 0 where there is none."""
    whole = (tensor for tensor in tensors(target.batch(0)) if tensor.dtype == torch.long)
    return next((tensor.numel() for tensor in whole if tensor.dim() == _TABLE), 0)


def _last(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dim() == _IMAGES:
        return leaf.to(memory_format=torch.channels_last)
    return leaf


def _checkpoint(model: Any) -> None:
    """Let a model compute its blocks' activations again in the backward: its own way, or block by block."""
    for name in ("gradient_checkpointing_enable", "set_grad_checkpointing"):
        if callable(getattr(model, name, None)):
            getattr(model, name)()
            return
    found = blocks(model)
    if not found:
        raise TargetError(
            "expected a model with repeated blocks to checkpoint, found no Sequential or ModuleList that holds "
            "several modules of one class; leave --checkpointing out"
        )
    for block in found:
        block.__dict__["forward"] = _again(block.forward)


def blocks(model: Any) -> list[torch.nn.Module]:
    """Return the outermost repeated blocks."""
    for module in modules(model):
        inside = [child for _, child in children(module)]
        kinds = [type(child) for child in inside if any(True for _ in child.parameters())]
        common = max(kinds, key=kinds.count, default=None)
        if common is not None and kinds.count(common) >= _REPEATED and any(True for _ in children(inside[0])):
            return [child for child in inside if type(child) is common]
    return []


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
