"""The parameter groups of an optimizer, judged apart: whether one loss scale suits them all."""

from collections.abc import Callable
from math import log2
from typing import TYPE_CHECKING, Any

from ampcheck.diagnose.scaling.gradients import gradient_tensors
from ampcheck.diagnose.scaling.groups import advise_groups
from ampcheck.observe.model.structure import named_parameters
from ampcheck.values.report import Report

if TYPE_CHECKING:
    from ampcheck.values.trace import Site

#: The name of what no group holds: the loss, and modules without parameters.
_REST = "the rest"


def group_sentences(report: Report, model: Any, optimizer: Callable[[Any], Any]) -> tuple[str, ...]:
    """Return what a person should know where parameter groups or optimizers want different loss scales."""
    owners = group_modules(model, optimizer)
    if len(set(owners.values())) < 2 or report.precision != "fp16":  # noqa: PLR2004  # one group agrees with itself
        return ()
    groups: dict[str, dict[Site, Any]] = {}
    for site, stats in gradient_tensors(report).items():
        groups.setdefault(owners.get(site.module, _REST), {})[site] = stats
    maxima = {name: [max(stats.amax for stats in tensors.values())] for name, tensors in groups.items()}
    apart = advise_groups(groups, maxima, report.format).apart
    if not apart:
        return ()
    wanted = (f"{name} 2^{round(log2(advice.settings.init_scale))}" for name, advice in apart.items())
    return (f"one loss scale does not suit all parameter groups alike: {', '.join(wanted)}",)


def group_modules(model: Any, optimizer: Callable[[Any], Any]) -> dict[str, str]:
    """Return the group of each module that owns parameters; several optimizers count one after another."""
    made = optimizer(model)
    optimizers = made if isinstance(made, (list, tuple)) else [made]
    groups = [group for each in optimizers for group in each.param_groups]
    held = {id(parameter): f"group {i}" for i, group in enumerate(groups) for parameter in group["params"]}
    return {
        path: held[id(parameter)] for path, _, parameter in named_parameters(model) if id(parameter) in held
    }
