"""The whole bench: every case of a sweep, every precision in it, each failure a row."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from ampcheck.bench.request import PARTS, Request
from ampcheck.bench.result import AGAIN, BASE, Bench, Case, Memory, Row
from ampcheck.bench.running.accuracy import Golden
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.machine import Meanwhile, environment
from ampcheck.bench.running.memory import cpu_peak, cuda_peak
from ampcheck.bench.running.precisions import Precision, precision
from ampcheck.bench.running.predict import Prediction, fitting_batch, predict
from ampcheck.bench.running.settings import batch_size, compiled, put
from ampcheck.bench.running.timing import Lane, interleave
from ampcheck.bench.running.training import train
from ampcheck.bench.why import reasons
from ampcheck.observe.step import StepRaised
from ampcheck.targets.seeding import seeded
from ampcheck.targets.spec import Target

Make: TypeAlias = Callable[[int | None, int], Target]  #: from a batch size and a seed
Progress: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class Bencher:
    """Benches one target; `keep` is given every state that is worth keeping."""

    make: Make
    request: Request
    say: Progress = lambda _: None
    keep: Callable[[Bench], None] = lambda _: None
    seed: int = 0

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
                target = self._target(asked)
                case = replace(asked, batch_size=batch_size(target))
                if not bench.environment:
                    bench = replace(bench, environment=environment(_device(target)), notes=_notes(target))
                for state in _Run(self, done.get(case.key, case), asked.batch_size or None).states():
                    done[case.key] = state
                    bench = replace(bench, cases=tuple(done.values()))
                    self.keep(bench)
        except KeyboardInterrupt:
            bench = replace(bench, interrupted=True)
            self.keep(bench)
        return bench

    def _target(self, case: Case) -> Target:
        return self.make(case.batch_size or None, self.seed)


@dataclass(slots=True)
class _Run:
    """One case while it is run."""

    bencher: Bencher
    begun: Case
    asked: int | None  #: batch size to build targets with

    def states(self) -> Iterator[Case]:
        """Yield the case after each of the parts that it lacks."""
        request, case = self.bencher.request, self.begun
        rows = {name: case.row(name) or Row(name) for name in request.rows}
        measure = {
            "time": self._timed,
            "memory": self._sized,
            "accuracy": self._compared,
            "training": self._trained,
        }
        for part in PARTS:
            if part not in request.parts or part in case.parts:
                continue
            if case.mode == "train" or part not in {"accuracy", "training"}:
                case = measure[part](case, rows)
            case = replace(case, rows=tuple(rows.values()), parts=(*case.parts, part))
            yield case

    def _make(self, seed: int | None = None) -> Target:
        bencher = self.bencher
        return put(bencher.make(self.asked, bencher.seed if seed is None else seed), self.begun)

    def _precision(self, name: str) -> Precision:
        return precision(name, self.bencher.request.plan)

    @contextmanager
    def _row(self, rows: dict[str, Row], name: str) -> Iterator[None]:
        """Let what fails become the row's status."""
        try:
            yield
        except StepRaised as raised:
            status = "oom" if raised.out_of_memory else "raised"
            rows[name] = replace(rows[name], status=status, message=str(raised))

    def _timed(self, case: Case, rows: dict[str, Row]) -> Case:
        lanes: list[Lane] = []
        if case.compiled:
            torch.compiler.reset()  # it compiles a function so many times only, and then runs it as it is
        for name in (*rows, AGAIN):
            held = BASE if name == AGAIN else name
            if rows[held].status == "ok":
                self.bencher.say(f"{self.begun.key}: settling {name}")
                try:
                    lanes += self._lane(rows, name, held)
                except StepRaised as raised:
                    rows[held] = _untimed(rows[held], raised, _device(self._make()))
        if not lanes or lanes[0].name != BASE or lanes[-1].name != AGAIN:
            return case  # without FP32 there is nothing to compare with
        meanwhile = Meanwhile(lanes[0].arm.device)
        budget = self.bencher.request.budget
        interleave(lanes, budget, lambda done: self.bencher.say(f"{self.begun.key}: timing, round {done}"))
        self._peaks(rows, lanes[:-1])
        for lane in lanes[:-1]:
            if lane.samples:
                rows[lane.name] = replace(rows[lane.name], time=lane.result())
            else:
                text = f"not timed: a step takes too long for a budget of {budget:g} s"
                rows[lane.name] = replace(rows[lane.name], message=text)
        again = lanes[-1].result() if lanes[-1].samples else None
        return replace(case, again=again, notes=(*case.notes, *meanwhile.notes()))

    def _lane(self, rows: dict[str, Row], name: str, held: str) -> list[Lane]:
        """Return the lane of a precision, its scaler settled; none where it cannot be timed here."""
        chosen = self._precision(held)
        arm = Arm(compiled(self._make(), self.begun), chosen, clip=self.bencher.request.clip)
        if chosen.tf32 and not _has_tf32(arm.device):
            rows[held] = replace(rows[held], message="no TF32 on this device: not timed")
            return []
        if self.begun.mode == "infer":
            return [Lane(name, arm.infer, arm)]
        with arm.running():
            settled = arm.settle()
        scale = settled.scale if arm.scaler.is_enabled() else None
        rows[held] = replace(rows[held], scale=scale, settling=settled.skipped)
        if not settled.ok:
            rows[held] = replace(
                rows[held],
                status="overflow",
                message=f"the gradients overflow at every loss scale down to {settled.scale:g}",
            )
            return []
        return [Lane(name, arm.train, arm)]

    def _peaks(self, rows: dict[str, Row], lanes: list[Lane]) -> None:
        """Read what memory was really used, in a pass of its own after the times."""
        if self.begun.mode == "infer":
            return
        for lane in lanes:
            if lane.arm.device.type == "cuda":
                with self._row(rows, lane.name):
                    allocated, reserved, retries = cuda_peak(lane.arm)
                    memory = Memory(None, allocated, reserved, retries)
            else:
                peak, note = cpu_peak(lane.arm)
                memory = Memory(cpu_peak=peak, note=note)
            rows[lane.name] = replace(rows[lane.name], memory=memory)

    def _sized(self, case: Case, rows: dict[str, Row]) -> Case:
        """Predict the memory of every row; the operations of the first one in low precision give the reasons."""
        found: dict[Any, Prediction | str] = {}
        fits: dict[Any, int | None] = {}
        for name, row in rows.items():
            chosen = self._precision(name)
            key = (chosen.dtype, chosen.plan.fp32_modules, chosen.plan.fp32_lines)
            if key not in found:
                self.bencher.say(f"{self.begun.key}: predicting the memory of {name}")
                found[key], fits[key] = self._predicted(chosen)
            prediction = found[key]
            memory = row.memory or Memory()
            if isinstance(prediction, str):
                rows[name] = replace(row, memory=replace(memory, note=prediction))
                continue
            note = "; ".join(text for text in (memory.note, prediction.note) if text)
            memory = replace(memory, predicted=prediction.split, note=note)
            rows[name] = replace(row, memory=memory, largest_batch=fits[key])
        low = (
            told for (dtype, *_), told in found.items() if dtype is not None and isinstance(told, Prediction)
        )
        first = next(low, None)
        return replace(case, reasons=reasons(first.operations if first else ()))

    def _predicted(self, chosen: Precision) -> tuple[Prediction | str, int | None]:
        """Return a prediction, or why there is none, and the largest batch that fits where that is asked for."""
        train, room = self.begun.mode == "train", self.bencher.request.room
        try:
            found = predict(self._make, chosen, train=train)
        except StepRaised as raised:
            return f"not predicted: {raised}", None
        return found, fitting_batch(self._make, chosen, room) if train and room is not None else None

    def _compared(self, case: Case, rows: dict[str, Row]) -> Case:
        self.bencher.say(f"{self.begun.key}: one step in FP64")
        golden: Golden | None = None
        for name in tuple(rows):
            with self._row(rows, name):
                golden = golden or Golden(self._make)
                self.bencher.say(f"{self.begun.key}: one step in {name}")
                rows[name] = replace(rows[name], one_step=golden.compare(self._precision(name)))
        return case

    def _trained(self, case: Case, rows: dict[str, Row]) -> Case:
        request, first = self.bencher.request, self.bencher.seed
        for seed in range(first, first + request.seeds):
            for name in tuple(rows):
                self.bencher.say(f"{self.begun.key}: training {name}, seed {seed}")
                course = train(self._make, self._precision(name), seed, request.steps, request.clip)
                rows[name] = replace(rows[name], courses=(*rows[name].courses, course))
        alike = request.seeds > 1 and len({course.losses for course in rows[BASE].courses}) == 1
        told = (
            f"training: all {request.seeds} seeds give the same model and batches, so they count as one run"
        )
        return replace(case, notes=(*case.notes, told)) if alike else case


def _device(target: Target) -> torch.device:
    from ampcheck.observe.step import Step

    return Step(target.model, None, target.loss).device


def _untimed(row: Row, raised: StepRaised, device: torch.device) -> Row:
    """Return the row of a precision that raised while it was timed; on a CPU that is about the CPU's kernels."""
    if raised.out_of_memory:
        return replace(row, status="oom", message=str(raised))
    if device.type == "cpu" and row.precision != BASE:
        return replace(row, message=f"not timed: this CPU does not run it ({raised.failure.kind})")
    return replace(row, status="raised", message=str(raised))


def _notes(target: Target) -> tuple[str, ...]:
    stand_in = ("the loss is ampcheck's stand-in",) if target.stand_in_loss else ()
    own = target.optimizer is not None
    optimizer = () if own else ("the optimizer is AdamW with its defaults: the target names none",)
    return (*target.notes, *stand_in, *optimizer)


def _has_tf32(device: torch.device) -> bool:
    ampere = (8, 0)
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= ampere
