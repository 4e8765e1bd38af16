"""Runs of the audited step with places in FP32, at one scale or at whichever lets it."""

from collections.abc import Iterable

import torch

from ampcheck.evidence import Suspect
from ampcheck.outcome import Outcome
from ampcheck.verify import Lab

#: Where GradScaler starts.
DEFAULT_LOG2_SCALE = 16
#: The scales at which sets are tried in fp16: far from both ends first, so that only the set decides; smaller
#: ones where gradients still overflow, as a scaler would.
_SEARCH_LOG2_SCALES = (8, 4, 0)
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Trials:
    """Tries changes to one step, in a lab and in one precision unless another is named."""

    def __init__(self, lab: Lab, precision: str) -> None:
        """Try in this lab."""
        self._lab = lab
        self._precision = precision

    def attempt(self, log2_scale: int, items: Iterable[Suspect] = (), precision: str = "") -> Outcome:
        """Return how the step comes out at a scale with these places in FP32."""
        chosen = list(items)
        modules = [item.module for item in chosen if item.module]
        places = (item.line.rpartition(":") for item in chosen if item.line)
        lines = [(file, int(line)) for file, _, line in places]
        return self._lab.trial(_DTYPES[precision or self._precision], log2_scale, modules, lines)

    def best(self, items: Iterable[Suspect]) -> Outcome:
        """Return how the step comes out with these places in FP32, at a scale that lets it."""
        chosen = tuple(items)
        for scale in _SEARCH_LOG2_SCALES if self._precision == "fp16" else (0,):
            outcome = self.attempt(scale, chosen)
            if not outcome.grads_nonfinite or outcome.loss_nonfinite:
                break
        return outcome

    def settled(self, precision: str) -> Outcome:
        """Return how the step comes out where a scaler would settle in another precision."""
        if precision == "bf16":
            return self.attempt(0, precision=precision)
        for scale in range(DEFAULT_LOG2_SCALE, 0, -2):
            outcome = self.attempt(scale, precision=precision)
            if outcome.finite or outcome.loss_nonfinite or outcome.raised:
                return outcome
        return self.attempt(0, precision=precision)

    def rounded(self) -> Outcome:
        """Return how FP32 comes out with its weights rounded to the precision."""
        return self._lab.rounded(_DTYPES[self._precision])

    def timed(self, items: Iterable[Suspect], log2_scale: int) -> tuple[float, float]:
        """Return the seconds of a step without and with these places in FP32."""
        self.attempt(log2_scale)
        before = self._lab.seconds
        self.attempt(log2_scale, items)
        return before, self._lab.seconds
