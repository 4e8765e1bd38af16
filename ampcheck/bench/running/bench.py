"""The whole bench: every case of a sweep, every precision in it, each failure a row."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from ampcheck.bench.gpu_time import gpu_time, runs_on
from ampcheck.bench.request import PARTS, Request
from ampcheck.bench.result import AGAIN, BASE, Bench, Case, GpuTime, Memory, Row
from ampcheck.bench.running.about import device_of, has_random_labels, has_tf32, notes_of
from ampcheck.bench.running.accuracy import Golden
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.machine import MachineLoad, environment
from ampcheck.bench.running.memory import cpu_peak, cuda_peak, empty_cache
from ampcheck.bench.running.precisions import Precision, precision
from ampcheck.bench.running.predict import Prediction, fitting_batch, predict
from ampcheck.bench.running.settings import batch_size, compiled, put, tokens
from ampcheck.bench.running.timing import Lane, interleave, without_frames
from ampcheck.bench.running.training import train
from ampcheck.bench.why import reasons
from ampcheck.observe.step import StepRaised
from ampcheck.targets.seeding import seeded
from ampcheck.targets.spec import Target

#: Training runs of each precision; with fewer than the second number nothing is judged.
SEEDS, FEWEST_SEEDS = 5, 3
#: Budgets of time that the training of a case may take before it stops at the fewest seeds.
TRAINING = 6

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
                bench, case = self._begun(bench, asked)
                for state in _Run(self, done.get(case.key, case), asked.batch_size or None).states():
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
        return bench, replace(asked, batch_size=batch_size(target), tokens=tokens(target))


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
            if case.mode == "train" or part != "training":
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
        if case.compiled:
            torch.compiler.reset()  # it compiles a function so many times only, and then runs it as it is
        lanes, raised = self._lanes(rows)
        again, notes = None, tuple[str, ...]()
        if lanes:
            load = MachineLoad(lanes[0].arm.device)
            done = interleave(lanes, self.bencher.request.budget, self._tick)
            raised |= {lane.name: error for lane, error in done.raised}
            times = {lane.name: lane.result() for lane in lanes if lane.samples}
            again, notes = times.pop(AGAIN, None), load.notes()
            for name, found in times.items():
                rows[name] = replace(rows[name], time=found)
            del done
        del lanes  # and with them their models: what did not fit beside them may fit alone
        for name in [name for name in raised if name != AGAIN]:
            self._alone(rows, name, raised.pop(name))
        return replace(case, again=again, notes=(*case.notes, *notes))

    def _tick(self, done: int) -> None:
        self.bencher.say(f"{self.begun.key}: timing, round {done}")

    def _lanes(self, rows: dict[str, Row]) -> tuple[list[Lane], dict[str, StepRaised]]:
        """Return the lanes that fit beside each other, FP32's second one as the last, and what the others raised."""
        lanes: list[Lane] = []
        raised: dict[str, StepRaised] = {}
        for name in (*rows, AGAIN):
            held = BASE if name == AGAIN else name
            if rows[held].status == "ok" and held not in raised:
                self.bencher.say(f"{self.begun.key}: settling {name}")
                try:
                    lanes += self._lane(rows, name, held)
                except StepRaised as error:
                    raised[name] = without_frames(error)
        return lanes, raised

    def _alone(self, rows: dict[str, Row], name: str, raised: StepRaised) -> None:
        """Time a precision that does not fit beside the others; what fails for another reason is its result."""
        device = device_of(self._make())
        if not raised.out_of_memory:
            rows[name] = _untimed(rows[name], raised, device)
            return
        empty_cache(device)
        try:
            lanes = self._lane(rows, name, name)
            done = interleave(lanes, self.bencher.request.budget / 2, self._tick)
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
        chosen = self._precision(held)
        arm = Arm(compiled(self._make(), self.begun), chosen, clip=self.bencher.request.clip)
        if chosen.recipe is not None:
            rows[held] = replace(rows[held], message="emulated: not timed")
            return []
        if chosen.tf32 and not has_tf32(arm.device):
            rows[held] = replace(rows[held], message="no TF32 on this device: not timed")
            return []
        if self.begun.mode == "infer":
            return [Lane(name, arm.infer, arm, trains=False)]
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

    def _measured(self, rows: dict[str, Row], name: str) -> Memory:
        """Measure the memory of one precision, alone: no other model is there meanwhile."""
        chosen = self._precision(name)
        self.bencher.say(f"{self.begun.key}: measuring the memory of {name}")
        try:
            arm = Arm(compiled(self._make(), self.begun), chosen, clip=self.bencher.request.clip)
            if chosen.tf32 and not has_tf32(arm.device):
                return Memory()
            with arm.running():
                arm.settle(1)
            return _used(arm)
        except StepRaised as raised:
            if raised.out_of_memory:
                rows[name] = replace(rows[name], status="oom", message=str(raised))
            return Memory(note=f"the peak of {name} is not measured: {raised}")

    def _is_measured(self, rows: dict[str, Row], name: str) -> bool:
        """Tell whether memory is measured: on a GPU, and on a CPU where steps are run for their time anyway."""
        request, trains = self.bencher.request, self.begun.mode == "train"
        ran = rows[name].time is not None or "time" not in request.parts
        on_gpu = device_of(self._make()).type == "cuda"
        return trains and rows[name].status == "ok" and ran and (on_gpu or "time" in request.parts)

    def _sized(self, case: Case, rows: dict[str, Row]) -> Case:
        """Predict the memory of every row; the operations of the first one in low precision give the reasons."""
        found: dict[Any, Prediction | str] = {}
        fits: dict[Any, int | None] = {}
        for name in tuple(rows):
            chosen = self._precision(name)
            if chosen.recipe is not None:
                rows[name] = replace(rows[name], memory=Memory(note="emulated: not predicted"))
                continue
            key = (chosen.dtype, chosen.weights, chosen.plan.fp32_modules, chosen.plan.fp32_lines)
            if key not in found:
                self.bencher.say(f"{self.begun.key}: predicting the memory of {name}")
                found[key], fits[key] = self._predicted(chosen)
            prediction = found[key]
            memory = self._measured(rows, name) if self._is_measured(rows, name) else Memory()
            row = rows[name]
            if isinstance(prediction, str):
                rows[name] = replace(row, memory=replace(memory, note=prediction))
                continue
            note = "; ".join(text for text in (memory.note, prediction.note) if text)
            memory = replace(memory, predicted=prediction.split, note=note)
            times, missing = self._on_gpus(name, prediction)
            rows[name] = replace(
                row, memory=memory, largest_batch=fits[key], gpu_times=times, flops=prediction.flops,
                message="; ".join(text for text in (row.message, missing) if text),
            )  # fmt: skip
        low = (
            shown
            for (dtype, *_), shown in found.items()
            if dtype is not None and isinstance(shown, Prediction)
        )
        first = next(low, None)
        return replace(case, reasons=reasons(first.operations if first else ()))

    def _on_gpus(self, name: str, found: Prediction) -> tuple[tuple[GpuTime, ...], str]:
        """Return the predicted times on the GPUs that were asked for, or why there are none."""
        wanted = self.bencher.request.gpus
        if wanted and found.recurrent:
            return (), "no time is predicted: a GPU runs recurrent layers as kernels that are not seen here"
        gradients = found.split.roles.get("parameters", 0) if self.begun.mode == "train" else 0
        peak = found.split.peak_bytes
        known = [card for card in wanted if runs_on(card, found.work)]
        missing = ", ".join(card for card in wanted if card not in known)
        times = tuple(gpu_time(card, found.work, name, gradients, peak) for card in known)
        return times, f"no time is predicted on {missing}: it has no bf16 units" if missing else ""

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
                golden = golden or Golden(self._make, trains=case.mode == "train")
                self.bencher.say(f"{self.begun.key}: one step in {name}")
                rows[name] = replace(rows[name], one_step=golden.compare(self._precision(name)))
        return case

    def _trained(self, case: Case, rows: dict[str, Row]) -> Case:
        request, first = self.bencher.request, self.bencher.seed
        begun, notes = time.monotonic(), case.notes
        for seed in range(first, first + (request.seeds or SEEDS)):
            done = seed - first
            if (
                request.seeds is None
                and done >= FEWEST_SEEDS
                and time.monotonic() - begun > TRAINING * request.budget
            ):
                notes = (
                    *notes,
                    f"training: {done} seeds in the time there was; --seeds {SEEDS} asks for more",
                )
                break
            for name in tuple(rows):
                self.bencher.say(f"{self.begun.key}: training {name}, seed {seed}")
                course = train(self._make, self._precision(name), seed, request.steps, request.clip)
                rows[name] = replace(rows[name], courses=(*rows[name].courses, course))
        runs = rows[BASE].courses
        if len(runs) > 1 and len({repr(course.losses) for course in runs}) == 1:
            notes = (
                *notes,
                f"training: all {len(runs)} seeds give the same model and batches, so they count as one run",
            )
        return replace(case, notes=notes)


def _used(arm: Arm) -> Memory:
    """Return the memory that a step really takes."""
    if arm.device.type == "cuda":
        allocated, reserved, retries = cuda_peak(arm)
        return Memory(None, allocated, reserved, retries)
    peak, note = cpu_peak(arm)
    return Memory(cpu_peak=peak, note=note)


def _untimed(row: Row, raised: StepRaised, device: torch.device) -> Row:
    """Return the row of a precision that raised while it was timed; on a CPU that is about the CPU's kernels."""
    if raised.out_of_memory:
        return replace(row, status="oom", message=str(raised))
    if device.type == "cpu" and row.precision != BASE:
        return replace(row, message=f"not timed: this CPU does not run it ({raised.failure.kind})")
    return replace(row, status="raised", message=str(raised))
