"""Several optimizers: one scaler for all where that is good for each, and otherwise one for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from ampcheck.diagnose.scaling.advice import AS_GOOD, ScaleAdvice, advise_scale
from ampcheck.diagnose.scaling.rounding import Key, combined_error, relevant
from ampcheck.values.formats import Format
from ampcheck.values.stats import TensorStats


@dataclass(frozen=True, slots=True)
class GroupAdvice(Generic[Key]):
    """The scalers for several groups of tensors, such as those behind each optimizer's own loss."""

    joint: ScaleAdvice[Key]  #: of one scaler for all
    apart: Mapping[
        str, ScaleAdvice[Key]
    ]  #: of one for each group; empty where the joint one is as good for all

    def of(self, group: str) -> ScaleAdvice[Key]:
        """Return the advice for a group."""
        return self.apart.get(group, self.joint)


def advise_groups(
    groups: Mapping[str, Mapping[Key, TensorStats]],
    maxima: Mapping[str, Sequence[float]],
    fmt: Format,
) -> GroupAdvice[Key]:
    """Return the scalers that suit groups of tensors, given without a scale, with their maxima by step."""
    together = {key: stats for tensors in groups.values() for key, stats in tensors.items()}
    if len(together) < sum(map(len, groups.values())):
        raise ValueError(
            "expected tensors of one group each, got one in two groups; add its statistics up first"
        )
    # A scaler skips the step of every optimizer whose gradients overflow, and lowers the one scale for all.
    largest = [max(step) for step in zip(*maxima.values(), strict=True)]
    joint = advise_scale(together, largest, fmt)
    own = {name: advise_scale(tensors, maxima[name], fmt) for name, tensors in groups.items()}
    agree = all(_suits(joint, advice, groups[name], fmt) for name, advice in own.items())
    return GroupAdvice(joint, {} if agree else own)


def _suits(
    joint: ScaleAdvice[Key], own: ScaleAdvice[Key], tensors: Mapping[Key, TensorStats], fmt: Format
) -> bool:
    """Tell whether a joint scale serves a group as well as its own."""
    error = combined_error(relevant(tensors).values(), fmt, joint.log2_scale)
    return joint.window.fits >= own.window.fits and error <= own.best_error * AS_GOOD
