"""Time: blocks of steps of all precisions, interleaved in an order that turns round."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ampcheck.bench.intervals import FEWEST_ROUNDS, ratio
from ampcheck.bench.result import Time
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.energy import joules
from ampcheck.bench.running.ranks import slowest
from ampcheck.observe.step import StepRaised

#: A block is at least this long, so that the clock and the ends of the block do not count.
BLOCK_SECONDS = 0.05
#: Slow steps get fewer rounds than `FEWEST_ROUNDS`, with wider intervals and a warning, but never fewer than this.
LEAST_ROUNDS = 4
MOST_ROUNDS = 120
#: The measurement ends when every ratio is known to this share, or with the budget.
PRECISE_ENOUGH = 0.01


@dataclass(slots=True)
class Lane:
    """One of the arms that are timed against each other."""

    name: str
    step: Callable[[], object]
    arm: Arm
    trains: bool = True
    steps: int = 1
    samples: list[float] = field(default_factory=list)
    device_samples: list[float] = field(default_factory=list)
    skipped: int = 0
    joules: float | None = 0.0  #: of all samples; None where nobody counts them

    def block(self, steps: int) -> float:
        """Return the seconds of a block of steps: the clocks are read at its two ends only."""
        with self.arm.running():
            if steps > 1:
                self.step()  # a short step after another lane's would read its weights from far memory
            applied = self.arm.applied
            _synchronize(self.arm.device)
            events, energy = _Events(self.arm.device), joules(self.arm.device)
            begun = time.perf_counter()
            for _ in range(steps):
                self.step()
            events.end()
            _synchronize(self.arm.device)
            seconds = slowest(time.perf_counter() - begun)
            self._energy = _apart(energy, joules(self.arm.device))
            scaled = self.arm.scaler.is_enabled() and self.trains
            self._last = events.seconds(), steps - (self.arm.applied - applied) if scaled else 0
        return seconds

    _last: tuple[float | None, int] = (None, 0)
    _energy: float | None = None

    def sample(self) -> None:
        """Time a block and keep it."""
        self.samples.append(self.block(self.steps) / self.steps)
        device, skipped = self._last
        self.skipped += skipped
        self.joules = None if self.joules is None or self._energy is None else self.joules + self._energy
        if device is not None:
            self.device_samples.append(device / self.steps)

    def result(self) -> Time:
        """Return what was measured."""
        each = None if self.joules is None else self.joules / (self.steps * len(self.samples))
        return Time(tuple(self.samples), self.steps, tuple(self.device_samples), self.skipped, each)


def _apart(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


class _Events:
    """A pair of events on a GPU's stream; elsewhere nothing."""

    def __init__(self, device: torch.device) -> None:
        self._pair = None
        if device.type == "cuda":
            self._pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._pair[0].record()

    def end(self) -> None:
        if self._pair:
            self._pair[1].record()

    def seconds(self) -> float | None:
        return self._pair[0].elapsed_time(self._pair[1]) / 1000 if self._pair else None


@dataclass(frozen=True, slots=True)
class Timed:
    """What became of the lanes: the order of every round, and the lanes that raised."""

    orders: tuple[tuple[str, ...], ...]
    raised: tuple[tuple[Lane, StepRaised], ...] = ()


def interleave(
    lanes: Sequence[Lane], budget: float, tick: Callable[[int], None] = lambda _: None, *, rounds: int = 0
) -> Timed:
    """Time all lanes round by round within a budget of seconds, or in just so many rounds.

    Every other round runs backwards and each pair of rounds starts with another lane, so that no lane always
    comes after the same one, or early, or late. A lane that raises is left out from there on, without samples:
    the others keep theirs.
    """
    begun = time.monotonic()
    raised: list[tuple[Lane, StepRaised]] = []
    lanes = _going(lanes, _calibrate, raised)
    orders: list[tuple[str, ...]] = []
    while lanes and len(orders) < (rounds or MOST_ROUNDS):
        spent = slowest(time.monotonic() - begun)
        late = spent > budget and (len(orders) >= FEWEST_ROUNDS or spent > 2 * budget)
        enough = len(orders) >= (LEAST_ROUNDS if late else FEWEST_ROUNDS)
        if not rounds and enough and len(orders) % 2 == 0 and (late or _precise(lanes)):
            break
        order = turned(lanes, len(orders))
        there = {id(lane) for lane in _going(order, Lane.sample, raised)}
        lanes = [lane for lane in lanes if id(lane) in there]
        orders.append(tuple(lane.name for lane in order))
        tick(len(orders))
    return Timed(tuple(orders), tuple(raised))


def _going(
    lanes: Sequence[Lane], act: Callable[[Lane], None], raised: list[tuple[Lane, StepRaised]]
) -> list[Lane]:
    """Let every lane act; return those that did, and keep what the others raised."""
    kept = []
    for lane in lanes:
        try:
            act(lane)
            kept.append(lane)
        except StepRaised as error:
            lane.samples.clear()
            lane.device_samples.clear()
            raised.append((lane, without_frames(error)))
    return kept


def without_frames(error: StepRaised) -> StepRaised:
    """Return an error without its frames: they would keep the model that raised it alive."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__, found = None, found.__cause__ or found.__context__
    return error


def _calibrate(lane: Lane) -> None:
    """Find how many steps make a block."""
    lane.block(1)
    lane.steps = max(1, math.ceil(BLOCK_SECONDS / lane.block(1)))


def turned(lanes: Sequence[Lane], index: int) -> list[Lane]:
    """Return the order of a round."""
    start = index // 2 % len(lanes)
    order = [*lanes[start:], *lanes[:start]]
    return order[::-1] if index % 2 else order


def _precise(lanes: Sequence[Lane]) -> bool:
    base = lanes[0].samples
    return all(ratio(base, lane.samples).half_width < PRECISE_ENOUGH for lane in lanes[1:])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
