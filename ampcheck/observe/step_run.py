"""One step, run and recorded: what it held, and what can be compared with another run of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.lineage import error_jumps, overflown_casts
from ampcheck.observe.statistics.step_record import Fetched
from ampcheck.observe.step import Step, StepRaised, run
from ampcheck.values.trace import ErrorJump, PairError, Site, Trace, summed_up


@dataclass(frozen=True, slots=True)
class StepRun:
    """One recorded step."""

    trace: Trace
    fetched: Fetched
    sources: Mapping[Site, Sequence[Site]]  #: what each operation's results were made of

    def error_jumps(
        self, reference: Trace, errors: Mapping[Site, PairError], dtype: str
    ) -> tuple[ErrorJump, ...]:
        """Return where errors begin: first the casts that the numbers do not fit."""
        return (
            *overflown_casts(self.sources, self.trace, reference, dtype),
            *error_jumps(self.sources, errors, dtype),
        )


def recorded(
    step: Step, recorder: Recorder, dtype: torch.dtype | None = None, log2_scale: int = 0
) -> StepRun:
    """Run a step and return what was recorded of it."""
    run(step, recorder, dtype, log2_scale)
    fetched = recorder.fetch()
    trace = recorder.trace(fetched)
    low = str(dtype).removeprefix("torch.")
    summary = summed_up(trace, fetched.losses[0], log2_scale, low)
    return StepRun(replace(trace, steps=(summary,)), fetched, recorder.sources())


def failed(raised: StepRaised) -> StepRun:
    """Return the run of a step that the user's code ended."""
    return StepRun(Trace(failure=raised.failure), Fetched({}, {}, {}, ()), {})
