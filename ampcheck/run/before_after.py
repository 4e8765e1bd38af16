"""Some steps of training, to be seen before and after a change: in FP32, and in low precision."""

from ampcheck.fix.long_trial import TrainingSetup, losses
from ampcheck.observe.model.state import Snapshot
from ampcheck.targets.seeding import seeded
from ampcheck.targets.spec import Target
from ampcheck.values.plan import DEFAULT_SCALE, Plan, ScalerPlan

_START = ScalerPlan(DEFAULT_SCALE)
TrainingCurve = tuple[list[float], int]  #: the loss of each step, and how many updates were skipped


class TrainingCurves:
    """Trains a target again and again from one state; the target is as before afterwards."""

    def __init__(self, target: Target, steps: int) -> None:
        self._target, self._steps = target, steps
        self._setup = TrainingSetup.of(target)

    def in_fp32(self) -> TrainingCurve:
        """Return the losses in FP32."""
        return self._trained(Plan("fp32"))

    def as_it_is(self, plan: Plan, scaler: ScalerPlan | None = None) -> TrainingCurve:
        """Return the losses in the precision of a plan, without any other change."""
        start = (scaler or _START) if plan.precision == "fp16" else None
        return self._trained(Plan(plan.precision, scaler=start))

    def _trained(self, plan: Plan) -> TrainingCurve:
        with self._target.active(), seeded(0):
            before = Snapshot(self._target.model, [self._target.batch(index) for index in range(self._steps)])
            try:
                return losses(self._setup, plan, self._steps)
            finally:
                before.restore()
