"""Where a watched training loop stands: in one line for a terminal, and as numbers over its steps."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ampcheck.run.tensorboard import Scalar
from ampcheck.values.trace import PairError, Phase, Site
from ampcheck.values.wording import clean, count, percent, scale_words

ROOT = "the root or the loss"


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """What is known of a loop at a step, without waiting for a device."""

    steps: int
    scale: float | None  #: the last that was read; None where there is no scaler
    skipped: int
    #: largest share of a gradient that became zero, in the last recorded step
    underflowed: float | None = None
    layer: str = ""  #: where that was

    @property
    def line(self) -> str:
        """Return it as one line."""
        parts = [f"ampcheck · step {count(self.steps)}"]
        if self.scale is not None:
            parts += [f"loss scale {scale_words(self.scale)}", f"{count(self.skipped)} skipped"]
        if self.underflowed is not None:
            where = f" in {clean(self.layer) or ROOT}" if self.underflowed else ""
            parts.append(f"worst underflow {percent(self.underflowed)}{where}")
        return " · ".join(parts)


def worst_underflow(errors: Mapping[Site, PairError]) -> tuple[float, str] | None:
    """Return the largest share of a layer's gradient that became zero, and the layer; None without gradients."""
    shares = [
        (pair.lost / pair.live, site.module)
        for site, pair in errors.items()
        if site.phase is Phase.BACKWARD and pair.live
    ]
    return max(shares, default=None)


def progress(watcher: Any) -> LoopProgress:
    """Return where a watched loop stands."""
    beside = (recorded.beside for recorded in reversed(watcher.tape.recorded))
    known = next((worst_underflow(fp32.errors) for fp32 in beside if fp32 is not None), None)
    skipped = sum(event.skipped for event in watcher.scales.events)
    return LoopProgress(watcher.steps, watcher.scales.current, skipped, *(known or ()))


def _norm(step: Any) -> float | None:
    """Return the norm of all gradients of a recorded step, without the loss scale; None where it has none.

    As torch's: of gradients that are not all finite it is no number.
    """
    grads = [stats for site, stats in step.low.sites.items() if site.slot.startswith("param_grad[")]
    if any(stats.nonfinite for stats in grads):
        return math.nan if any(stats.nans for stats in grads) else math.inf
    whole = math.sqrt(math.fsum(stats.sum_squares for stats in grads))
    return math.ldexp(whole, -step.log2_scale) if grads else None


class Numbers:
    """The numbers of a watched loop as they become known."""

    def __init__(self) -> None:
        self._recorded = self._events = self._skipped = 0
        self._scalers: set[str] = set()

    def fresh(self, watcher: Any) -> Iterator[Scalar]:
        """Yield what has become known since this was asked last."""
        scales, recorded = watcher.scales, watcher.tape.recorded
        for scaler, first in scales.first.items():
            if scaler not in self._scalers:
                self._scalers.add(scaler)
                yield Scalar(f"ampcheck/loss scale/{scaler}", 0, first)
        for event in scales.events[self._events :]:
            self._skipped += event.skipped
            yield Scalar(f"ampcheck/loss scale/{event.scaler}", event.step + 1, event.after)
            yield Scalar("ampcheck/skipped steps", event.step + 1, self._skipped)
        for step in recorded[self._recorded :]:
            yield Scalar("ampcheck/loss/as trained", step.step, step.losses[0])
            if (norm := _norm(step)) is not None:
                yield Scalar("ampcheck/gradient norm", step.step, norm)
            if step.beside is None:
                continue
            worst = worst_underflow(step.beside.errors)
            yield Scalar("ampcheck/loss/in FP32", step.step, step.losses[1])
            if worst is not None:
                yield Scalar("ampcheck/worst underflow", step.step, worst[0])
        self._events, self._recorded = len(scales.events), len(recorded)
