"""A course of training steps: where each tensor goes, in FP32 and with half-precision weights."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.diagnose.rules.optimizer_eps import LARGER_EPS
from ampcheck.fix.long_trial import TrainingSetup
from ampcheck.inference.casting import Way, as_asked, cast_inputs, named_state, restored
from ampcheck.inference.optimizer_state import Moments, moments, never_decays, vanishing_eps, with_eps
from ampcheck.inference.remedies import SAFE_EPS, WAYS, HalfUpdates
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.step import Step, Widened, casting_rules, clear_gradients
from ampcheck.targets.spec import Target
from ampcheck.values.trace import Failure, UpdateLoss

#: Share of FP32's way that an element has to go at least, and times that it may go at most.
TOO_SHORT, TOO_FAR = 0.75, 2.0
#: Of a tensor's way in FP32: what of it may be missing at the end before the tensor counts as off.
OFF = 0.2

State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Moved:
    """Where each tensor began and where a course of steps took it."""

    first: State
    last: State
    failure: Failure | None = None
    moments: Moments = field(default_factory=dict)  #: of the optimizer, at the end
    vanishing: float = 0.0  #: an eps of the optimizer's that was zero in the dtype of the weights
    caveats: tuple[str, ...] = ()  #: on what the optimizer held

    @property
    def way(self) -> State:
        """Return by how much each tensor moved."""
        return {name: last - self.first[name] for name, last in self.last.items()}


@dataclass(slots=True)
class Trainer:
    """Trains a target again and again from the same state."""

    target: Target
    steps: int
    scaled: bool = False  #: with a gradient scaler, as the target's own code does
    before: Snapshot = field(init=False)
    _updates: HalfUpdates | None = None
    _optimizer: Any = None

    def __post_init__(self) -> None:
        """Keep the state that every course begins from."""
        target = self.target
        self.before = Snapshot(target.model, list(target.batches), target.loss, target.after_step)

    def run(self, way: Way, updates: str = "") -> Moved:
        """Train in a way, with weights updated in a way of `remedies`, and put everything back."""
        with restored(self.before):
            if way.dtype is None:
                Widened(self.target.model, list(self.target.batches))
            exact = {name: tensor.detach().double() for name, tensor, _ in named_state(self.target.model)}
            with as_asked(self.target.model, way):
                failure = self._train(way, updates)
                held = self._optimizer, way.dtype or torch.float32
                vanishing, caveats = vanishing_eps(*held), tuple(filter(None, [never_decays(*held)]))
            names = {id(tensor): name for name, tensor, _ in named_state(self.target.model)}
            aside = self._updates.aside if self._updates is not None else torch.zeros_like
            last = {n: t.detach().double() + aside(t.detach()) for n, t, _ in named_state(self.target.model)}
            return Moved(exact, last, failure, moments(self._optimizer, names), vanishing, caveats)

    def _train(self, way: Way, updates: str) -> Failure | None:
        target, low = self.target, way.dtype is not None
        device = Step(target.model, None, target.loss).device
        optimizer: Any = TrainingSetup.of(target).build()
        self._optimizer = optimizer
        if updates == SAFE_EPS:
            with_eps(optimizer, LARGER_EPS)
        self._updates = HalfUpdates(optimizer, updates) if updates in WAYS else None
        optimizer = self._updates or optimizer
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=self.scaled and low)
        with casting_rules(device, None), torch.enable_grad():
            for index in range(self.steps):
                clear_gradients(target.model)
                batch = target.batch(index)
                given = cast_inputs(batch, way.dtype) if way.dtype is not None else batch
                with WideCompute() if low else nullcontext():
                    scaler.scale(target.loss(target.model, given)).backward()
                try:
                    scaler.step(optimizer)
                except ValueError as error:
                    return Failure(type(error).__name__, str(error), op="unscale_")
                scaler.update()
                if target.after_step is not None:
                    target.after_step(target.model)
        return None


def losses_of(wide: Moved, low: Moved) -> tuple[UpdateLoss, ...]:
    """Return, for each tensor that moves in FP32, how many of its elements did not get there."""
    rows = []
    for name, last in wide.last.items():
        way = last - wide.first[name]
        if name not in low.last or not bool((way != 0).any()):
            continue
        went = low.last[name] - wide.first[name]
        moves = (way != 0) & way.isfinite()
        along = went * way.sign()
        stuck = moves & (along < TOO_SHORT * way.abs())
        wrong = moves & (~went.isfinite() | (went.abs() > TOO_FAR * way.abs()))
        off = float((went - way).where(moves, 0.0).norm() / way.where(moves, 0.0).norm())
        if off <= OFF:  # a few small elements may go anywhere
            stuck, wrong = torch.zeros_like(stuck), torch.zeros_like(wrong)
        rows.append(UpdateLoss(name, int(moves.sum()), int((stuck & ~wrong).sum()), int(wrong.sum())))
    return tuple(rows)


def lost(rows: tuple[UpdateLoss, ...]) -> list[UpdateLoss]:
    """Return the tensors most of whose elements did not get where FP32 takes them."""
    return [row for row in rows if 2 * (row.stuck + row.wrong) > row.moved]
