"""What is done to, and found out of, a model before its first step is recorded."""

import inspect
from typing import Any

import torch

from ampcheck.observe.model.state import random_state, set_random_state
from ampcheck.observe.model.structure import inner, is_compiled, is_lazy, modules, named_modules, own_tensors
from ampcheck.observe.step import Step, casting_rules, users_code


def shape_lazy_parameters(step: Step) -> int:
    """Let lazy modules take their shape from one run without gradients; return how many there were.

    Without it the first run would draw their weights, and the second would not.
    """
    lazy = [module for module in modules(step.model) if any(map(is_lazy, dict(own_tensors(module)).values()))]
    if not lazy:
        return 0
    state = random_state()
    with users_code(), casting_rules(step.device, None), torch.no_grad():
        step.loss(step.model, step.batch)
    for module in lazy:
        reset = getattr(module, "reset_running_stats", None)
        if callable(reset):
            reset()
    set_random_state(state)
    return len(lazy)


def compiled(model: Any) -> list[str]:
    """Return the names of the parts of a model that torch.compile was asked to compile."""
    names = {id(module): path or "the model" for path, module in named_modules(model)}
    found: list[str] = []
    for module in modules(model):
        owner = names.get(id(inner(module) or module), type(module).__name__)
        if is_compiled(module):
            found.append(owner)
            continue
        functions = {"forward": inspect.getattr_static(type(module), "forward", None)} | module.__dict__
        found += [f"{owner}.{name}" for name, value in functions.items() if _is_compiled_function(value)]
    return list(dict.fromkeys(found))


def _is_compiled_function(value: Any) -> bool:
    # What the compiler has to leave alone carries the same mark, and one more.
    own = getattr(value, "__dict__", {}) if not isinstance(value, torch.nn.Module) else {}
    return "_torchdynamo_orig_callable" in own and "_torchdynamo_disable" not in own
