"""Time: blocks of steps of all precisions, interleaved in an order that turns round."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ampcheck.bench.intervals import ratio
from ampcheck.bench.result import Time
from ampcheck.bench.running.arms import Arm

#: A block is at least this long, so that the clock and the ends of the block do not count.
BLOCK_SECONDS = 0.05
#: With fewer rounds a bootstrap interval of a median means little.
FEWEST_ROUNDS = 7
MOST_ROUNDS = 60
#: Lanes whose fewest rounds take longer than the budget are left out, but never for less than this.
_LEAST_BUDGET = 2.0
#: The measurement ends when every ratio is known to this share, or with the budget.
PRECISE_ENOUGH = 0.03


@dataclass(slots=True)
class Lane:
    """One of the arms that are timed against each other."""

    name: str
    step: Callable[[], object]
    arm: Arm
    steps: int = 1
    samples: list[float] = field(default_factory=list)
    device_samples: list[float] = field(default_factory=list)
    skipped: int = 0

    def block(self, steps: int) -> float:
        """Return the seconds of a block of steps: the clocks are read at its two ends only."""
        with self.arm.running():
            if steps > 1:
                self.step()  # a short step after another lane's would read its weights from far memory
            before = self.arm.scaler.state_dict()
            _synchronize(self.arm.device)
            events = _Events(self.arm.device)
            begun = time.perf_counter()
            for _ in range(steps):
                self.step()
            events.end()
            _synchronize(self.arm.device)
            seconds = time.perf_counter() - begun
            self._last = events.seconds(), self.arm.skipped_since(before, steps) if before else 0
        return seconds

    _last: tuple[float | None, int] = (None, 0)

    def sample(self) -> None:
        """Time a block and keep it."""
        self.samples.append(self.block(self.steps) / self.steps)
        device, skipped = self._last
        self.skipped += skipped
        if device is not None:
            self.device_samples.append(device / self.steps)

    def result(self) -> Time:
        """Return what was measured."""
        return Time(tuple(self.samples), self.steps, tuple(self.device_samples), self.skipped)


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


def interleave(
    lanes: Sequence[Lane], budget: float, tick: Callable[[int], None] = lambda _: None
) -> tuple[tuple[str, ...], ...]:
    """Time all lanes round by round within a budget of seconds; return the order of every round.

    Every other round runs backwards and each pair of rounds starts with another lane, so that no lane always
    comes after the same one, or early, or late.
    """
    lanes = _calibrated(lanes, budget)
    until = time.monotonic() + budget
    orders: list[tuple[str, ...]] = []
    while len(orders) < MOST_ROUNDS:
        enough = len(orders) >= FEWEST_ROUNDS
        if enough and len(orders) % 2 == 0 and (time.monotonic() > until or _precise(lanes)):
            break
        order = turned(lanes, len(orders))
        for lane in order:
            lane.sample()
        orders.append(tuple(lane.name for lane in order))
        tick(len(orders))
    return tuple(orders)


def _calibrated(lanes: Sequence[Lane], budget: float) -> list[Lane]:
    """Find how many steps make a block; leave out what is too slow to be timed beside the others."""
    kept: list[Lane] = []
    for lane in lanes:
        lane.block(1)
        step = lane.block(1)
        lane.steps = max(1, math.ceil(BLOCK_SECONDS / step))
        if not kept or step * FEWEST_ROUNDS <= max(budget, _LEAST_BUDGET):
            kept.append(lane)
    return kept


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
