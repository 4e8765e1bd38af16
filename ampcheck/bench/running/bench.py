"""The whole bench: every case of a sweep, every precision in it, each failure a row."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch

from ampcheck.bench.request import PARTS, Request
from ampcheck.bench.result import AGAIN, BASE, Bench, Case, Row
from ampcheck.bench.running.about import device_of, has_random_labels, has_tf32, notes_of
from ampcheck.bench.running.accuracy import Golden
from ampcheck.bench.running.energy import uncounted
from ampcheck.bench.running.machine import MachineLoad, environment
from ampcheck.bench.running.memory import empty_cache
from ampcheck.bench.running.one_case import Make, OneCase
from ampcheck.bench.running.predict import batch_size_of
from ampcheck.bench.running.ranks import size
from ampcheck.bench.running.settings import tokens
from ampcheck.bench.running.sizing import sized
from ampcheck.bench.running.timing import Lane, interleave, without_frames
from ampcheck.bench.running.training import train
from ampcheck.errors import AmpcheckError
from ampcheck.observe.step import StepRaised
from ampcheck.targets.seeding import seeded

#: Training runs of each precision; with fewer than the second number nothing is judged.
SEEDS, FEWEST_SEEDS = 5, 3
RANKS_NOTE = (
    "ranks: time and memory are measured, those of rank 0; accuracy, training and predictions: one rank's row"
)
#: Budgets of time that the training of a case may take before it stops at the fewest seeds.
TRAINING = 6

Progress: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class Bencher:
    """Benches one target; `keep` is given every state that is worth keeping."""

    make: Make
    request: Request
    say: Progress = lambda _: None
    keep: Callable[[Bench], None] = lambda _: None
    seed: int = 0
    launch: Callable[[Case], Case] | None = None  #: measures a case of several ranks

    def run(self, bench: Bench) -> Bench:
        """Return a bench with the cases and parts added that it lacks; after Ctrl-C with those that were done.

        Random state outside is left as it was.
        """
        with seeded(self.seed):
            return self._run(bench)

    def _run(self, bench: Bench) -> Bench:
        done = {case.key: case for case in bench.cases}
        bench = replace(bench, interrupted=False)
        try:
            for asked in self.request.cases():
                bench, case = self._begun(bench, asked)
                if case.ranks != size():
                    done[case.key] = self._launched(case, asked.batch_size)
                    bench = replace(bench, cases=tuple(done.values()))
                    self.keep(bench)
                    continue
                for state in _Run(self, self._one(done.get(case.key, case), asked.batch_size)).states():
                    done[case.key] = state
                    bench = replace(bench, cases=tuple(done.values()))
                    self.keep(bench)
        except KeyboardInterrupt:
            bench = replace(bench, interrupted=True)
            self.keep(bench)
        return bench

    def _begun(self, bench: Bench, asked: Case) -> tuple[Bench, Case]:
        """Look at the target, and let go of it: its model would be in memory beside those that are measured."""
        target = self.make(asked.batch_size or None, self.seed)
        if not bench.environment:
            bench = replace(
                bench,
                environment=environment(device_of(target)),
                notes=notes_of(target),
                random_labels=has_random_labels(target),
                settings=self.request.settings,
            )
        return bench, replace(asked, batch_size=batch_size_of(target.batch(0)), tokens=tokens(target))

    def _launched(self, case: Case, size: int) -> Case:
        """Return a case of several ranks; what keeps them from running is the result of every row.

        A size of 0 leaves the batch to the target, which may have one only.
        """
        self.say(f"{case.key}: launching the ranks")
        try:
            found = (self.launch or _refused)(replace(case, batch_size=size))
        except AmpcheckError as error:
            rows = tuple(Row(name, "raised", str(error)) for name in self.request.rows)
            return replace(case, rows=rows, parts=self.request.parts)
        return replace(found, notes=(*found.notes, RANKS_NOTE))

    def _one(self, case: Case, size: int) -> OneCase:
        return OneCase(self.make, self.request, case, size or None, self.seed, self.say)


@dataclass(slots=True)
class _Run:
    """One case while it is run."""

    bencher: Bencher
    one: OneCase

    def states(self) -> Iterator[Case]:
        """Yield the case after each of the parts that it lacks."""
        request, case = self.one.request, self.one.begun
        rows = {name: case.row(name) or Row(name) for name in request.rows}
        measure: dict[str, Callable[[Case, dict[str, Row]], Case]] = {
            "time": self._timed,
            "memory": partial(sized, self.one),
            "accuracy": self._compared,
            "training": self._trained,
        }
        for part in PARTS if case.ranks == 1 else PARTS[:2]:
            if part not in request.parts or part in case.parts:
                continue
            if case.mode == "train" or part != "training":
                case = measure[part](case, rows)
            case = replace(case, rows=tuple(rows.values()), parts=(*case.parts, part))
            yield case

    @contextmanager
    def _row(self, rows: dict[str, Row], name: str) -> Iterator[None]:
        """Let what fails become the row's status."""
        try:
            yield
        except StepRaised as raised:
            status = "oom" if raised.out_of_memory else "raised"
            rows[name] = replace(rows[name], status=status, message=str(raised))

    def _timed(self, case: Case, rows: dict[str, Row]) -> Case:
        if case.compiled:
            torch.compiler.reset()  # it compiles a function so many times only, and then runs it as it is
        lanes, raised = self._lanes(rows)
        again, notes = None, tuple[str, ...]()
        if lanes:
            load = MachineLoad(lanes[0].arm.device)
            done = interleave(lanes, self.one.request.budget, self._tick)
            raised |= {lane.name: error for lane, error in done.raised}
            times = {lane.name: lane.result() for lane in lanes if lane.samples}
            again, notes = times.pop(AGAIN, None), load.notes()
            missing = uncounted(lanes[0].arm.device)
            notes = (*notes, f"no energy and no power: {missing}") if missing else notes
            for name, found in times.items():
                rows[name] = replace(rows[name], time=found)
            del done
        del lanes  # and with them their models: what did not fit beside them may fit alone
        for name in [name for name in raised if name != AGAIN]:
            self._alone(rows, name, raised.pop(name))
        return replace(case, again=again, notes=(*case.notes, *notes))

    def _tick(self, done: int) -> None:
        self.one.say(f"timing, round {done}")

    def _lanes(self, rows: dict[str, Row]) -> tuple[list[Lane], dict[str, StepRaised]]:
        """Return the lanes that fit beside each other, FP32's second one as the last, and what the others raised."""
        lanes: list[Lane] = []
        raised: dict[str, StepRaised] = {}
        for name in (*rows, AGAIN):
            held = BASE if name == AGAIN else name
            if rows[held].status == "ok" and held not in raised:
                self.one.say(f"settling {name}")
                try:
                    lanes += self._lane(rows, name, held)
                except StepRaised as error:
                    raised[name] = without_frames(error)
        return lanes, raised

    def _alone(self, rows: dict[str, Row], name: str, raised: StepRaised) -> None:
        """Time a precision that does not fit beside the others; what fails for another reason is its result."""
        device = device_of(self.one.make())
        if not raised.out_of_memory:
            rows[name] = _untimed(rows[name], raised, device)
            return
        empty_cache(device)
        try:
            lanes = self._lane(rows, name, name)
            done = interleave(lanes, self.one.request.budget / 2, self._tick)
            for _, error in done.raised:
                raise error
        except StepRaised as error:
            rows[name] = _untimed(rows[name], error, device)
            return
        for lane in lanes:
            shown = "timed alone: it does not fit into memory beside the others, so its ratio is less certain"
            rows[name] = replace(rows[name], time=lane.result(), message=shown)

    def _lane(self, rows: dict[str, Row], name: str, held: str) -> list[Lane]:
        """Return the lane of a precision, its scaler settled; none where it cannot be timed here."""
        chosen = self.one.precision(held)
        graphed = self.one.begun.cuda_graphs and device_of(self.one.make()).type == "cuda"
        arm = self.one.arm(chosen, graphed=graphed)
        obstacles = {
            "CUDA graphs need a GPU": self.one.begun.cuda_graphs and not graphed,
            "emulated": chosen.recipe is not None,
            "no TF32 on this device": chosen.tf32 and not has_tf32(arm.device),
        }
        for why in (why for why, there in obstacles.items() if there):
            rows[held] = replace(rows[held], message=f"{why}: not timed")
            return []
        if self.one.begun.mode == "infer":
            return [Lane(name, arm.infer, arm, trains=False)]
        with arm.running():
            settled = arm.settle()
        scale = settled.scale if arm.scaler.is_enabled() else None
        rows[held] = replace(rows[held], scale=scale, settling=settled.skipped)
        if not settled.ok:
            words = f"the gradients overflow at every loss scale down to {settled.scale:g}"
            rows[held] = replace(rows[held], status="overflow", message=words)
            return []
        return [Lane(name, arm.train, arm)]

    def _compared(self, case: Case, rows: dict[str, Row]) -> Case:
        self.one.say("one step in FP64")
        golden: Golden | None = None
        for name in tuple(rows):
            with self._row(rows, name):
                golden = golden or Golden(self.one.make, trains=case.mode == "train")
                self.one.say(f"one step in {name}")
                rows[name] = replace(rows[name], one_step=golden.compare(self.one.precision(name)))
        return case

    def _trained(self, case: Case, rows: dict[str, Row]) -> Case:
        request, first = self.one.request, self.bencher.seed
        begun, notes = time.monotonic(), case.notes
        for seed in range(first, first + (request.seeds or SEEDS)):
            done = seed - first
            late = time.monotonic() - begun > TRAINING * request.budget
            if request.seeds is None and done >= FEWEST_SEEDS and late:
                text = f"training: {done} seeds in the time there was; --seeds {SEEDS} asks for more"
                notes = (*notes, text)
                break
            for name in tuple(rows):
                self.one.say(f"training {name}, seed {seed}")
                course = train(self.one.make, self.one.precision(name), seed, request.steps, request.clip)
                rows[name] = replace(rows[name], courses=(*rows[name].courses, course))
        runs = rows[BASE].courses
        if len(runs) > 1 and len({repr(course.losses) for course in runs}) == 1:
            text = (
                f"training: all {len(runs)} seeds give the same model and batches, so they count as one run"
            )
            notes = (*notes, text)
        return replace(case, notes=notes)


def _refused(case: Case) -> Case:
    raise AmpcheckError(f"expected `ampcheck bench` to launch {case.ranks} ranks; nothing else can")


def _untimed(row: Row, raised: StepRaised, device: torch.device) -> Row:
    """Return the row of a precision that raised while it was timed; on a CPU that is about the CPU's kernels."""
    if raised.out_of_memory:
        return replace(row, status="oom", message=str(raised))
    if device.type == "cpu" and row.precision != BASE:
        return replace(row, message=f"not timed: this CPU does not run it ({raised})")
    return replace(row, status="raised", message=str(raised))
