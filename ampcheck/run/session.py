"""A training script, watched while it runs, and the report of what was seen."""

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from ampcheck.diagnose.rules.gradients import MANY_SKIPS
from ampcheck.diagnose.verdict import diagnosed
from ampcheck.fix.verify import comparison
from ampcheck.observe.cuda_on_cpu.emulation import prepare
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.execution import Execute, run_op
from ampcheck.observe.model.depth import room
from ampcheck.observe.model.held import held
from ampcheck.observe.script.cuda.as_cuda import AsCuda
from ampcheck.observe.script.hooks import Hooks
from ampcheck.observe.script.recorded import Beside, Recorded
from ampcheck.observe.script.watcher import Watcher
from ampcheck.observe.script.what_if import WhatIf
from ampcheck.observe.statistics.measure import Arena
from ampcheck.run.import_hooks import after_import
from ampcheck.run.makers import makers
from ampcheck.run.ranks import Ranks
from ampcheck.run.script_coverage import most_missed, script_coverage, settled
from ampcheck.run.script_outcomes import evaluated, script_doubts, script_outcomes, with_ruined, without_one
from ampcheck.run.skip_origins import with_origins
from ampcheck.run.surely import Function, running
from ampcheck.run.wishes import NO_WISHES, Wishes
from ampcheck.values.formats import HALVES, SHORT_DTYPE
from ampcheck.values.loop import Kind, Loop
from ampcheck.values.report import Report
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import PairError, Site, Trace, UpdateLoss, add_maps
from ampcheck.values.wording import plural

OnStep = Callable[[Watcher], None]


class Session:
    """The watch over one script: what `ampcheck run` and `ampcheck.watch` are made of."""

    def __init__(  # noqa: PLR0913  # keywords, each an option of the watch
        self,
        schedule: Schedule,
        on_step: OnStep = lambda _: None,
        *,
        as_cuda: bool | None = False,
        cuda_named: bool = False,
        what_if: str = "",
        follows: bool = False,
        asked: Wishes = NO_WISHES,
    ) -> None:
        """Prepare to watch; `on_step` hears of every step. It `follows` the script into the thread that trains.

        With `as_cuda` the CPU stands in for CUDA; None: where there is none and the script asks for it. It may
        then still be on_step that there is none, unless `cuda_named`: its command line asks for CUDA.
        """
        self._what_if = what_if
        self._asked = asked
        self._ran: frozenset[Function] = frozenset()  #: functions of the script that the first step is within
        self.ranks = Ranks()
        #: Tells whether a report of its own follows on layers that the script trains in FP8.
        self.recipes_follow: Callable[[], bool] = lambda: False
        self._on_step = on_step
        lower = WhatIf(DTYPES[what_if], prepare) if what_if else None
        self.watcher = Watcher(schedule, comparison, self._execute, self._stepped, lower)
        self.watcher.thread.follows = follows
        self._as_cuda, self._available = as_cuda, bool(as_cuda) or cuda_named
        self._stand_in: AsCuda | None = None

    def _stepped(self, watcher: Watcher) -> None:
        self.ranks.look()
        if self._asked.inside and not self._ran:
            self._ran = running(self._asked.path)
        self._on_step(watcher)

    def _execute(self) -> Execute:
        """Return how operations are run: half precision as on a GPU where a CPU stands in for one."""
        emulating = self._stand_in is not None and self._stand_in.emulating
        return execute if emulating or self._what_if else run_op

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """Watch what runs inside; whatever happens, nothing stays behind."""
        with ExitStack() as stack:
            stack.enter_context(room())
            if AsCuda.now is not None:  # a process that was forked has it from its parent
                self._stand_in = AsCuda.now
            elif self._as_cuda or (self._as_cuda is None and not torch.cuda.is_available()):
                self._stand_in = AsCuda(available=self._available)
                self._stand_in.woken = lambda scaler: self.watcher.made(scaler, {})
                stack.callback(self._stand_in.close)
                self._uncompiled(self._stand_in)
            stack.callback((hooks := Hooks(self.watcher)).close)
            stack.callback(after_import(hooks.deepspeed, hooks.hear_deepspeed))
            stack.callback(self.watcher.end)
            stack.callback(self.ranks.look)
            self.watcher.begin()
            if self._asked.half:
                self.watcher.tape.workers.preparation.begin(self.watcher)
            yield self.watcher

    def _uncompiled(self, stand_in: AsCuda) -> None:
        """Let nothing be compiled for a CPU that stands in for CUDA."""
        compiler = self.watcher.compiler
        compiler.plain.append(stand_in.paused)
        compiler.useless = lambda: self._available or stand_in.used

    @property
    def trained(self) -> bool:
        """Tell whether the script trained: it may have skipped every step itself."""
        return bool(self.watcher.steps or self.watcher.tape.recorded or self.watcher.thread.sent.ruined)

    @property
    def left_out(self) -> str:
        """Return what no step shows of a script without training."""
        thread = self.watcher.thread
        backwards = self.watcher.backwards + thread.backwards.total() + thread.asked
        words = f"{plural(backwards, 'backward')} computed gradients: what they change was not seen"
        return words if backwards else ""

    def report(self, target: str, notes: Sequence[str] = ()) -> Report:
        """Return what was seen, judged."""
        watcher = self.watcher
        loop = watcher.loop()
        counted, judged = _comparable(watcher.tape.recorded, loop)
        judged = without_one(judged)
        outcomes = script_outcomes(_used(judged, loop) or judged)
        outcomes = with_ruined(outcomes, watcher.tape.recorded, watcher.tape.left_behind)
        full = [(recorded, recorded.beside) for recorded in counted if recorded.beside is not None]
        low, reference = Trace(), Trace()
        errors: dict[Site, PairError] = {}
        for recorded, beside in full:
            low, reference = low + recorded.low, reference + beside.reference
            errors = add_maps(errors, beside.errors)
        low = replace(
            low,
            # What a scale is advised by is known of steps without a reference as well.
            steps=tuple(summary for recorded in counted for summary in recorded.low.steps),
            not_audited={
                **most_missed([recorded for recorded, _ in full]),
                **watcher.not_seen,
                **watcher.thread.not_seen(watcher.backwards),
                **watcher.tape.given_up,
                **_uncalled(watcher),
            },
            failure=watcher.tape.failure,
            modules=low.modules or tuple(watcher.tape.ran),
        )
        last = full[-1][0] if full else None
        report = Report(
            target,
            precision=self._what_if or _precision(watcher),
            log2_scale=last.log2_scale if last else 0,
            reference=reference,
            low=low,
            errors=errors,
            error_jumps=next((beside.error_jumps for _, beside in full if beside.error_jumps), ()),
            notes=(*notes, *self._cast(), *_said(watcher)),
            environment=_environment() | self._casting(),
            outcomes=outcomes,
            loop=with_origins(loop, watcher.tape.recorded, alone=self.ranks.size == 1),
            in_use=tuple(
                replace(layer, judged=bool(layer.recipe) and self.recipes_follow())
                for layer in watcher.tape.in_use.values()
            ),
            doubts=(*script_doubts(judged), *evaluated(watcher.tape.workers)),
            updates=_updates(watcher, full),
        )
        report = replace(report, makers=makers(report))
        return diagnosed(
            report,
            script_coverage(
                watcher, report, judged, self._asked.one(self._ran), stood_in=bool(self._casting())
            ),
        )

    def _casting(self) -> dict[str, str]:
        emulated = self._stand_in is not None and self._stand_in.emulating
        return {"casting": "CUDA's rules on CPU tensors"} if emulated else {}

    def _cast(self) -> Iterator[str]:
        """Yield what has to be said of a precision or a device that the script did not have."""
        if self._what_if:
            yield (
                f"the script trains without {self._what_if}: its recorded steps ran under {self._what_if} autocast, "
                "with CUDA's casting rules, and then got the gradients and running averages of FP32"
            )
        if self._stand_in is not None and self._stand_in.used:
            rules = ", with CUDA's casting rules and a live scaler" if self._stand_in.emulating else ""
            yield f"the script uses CUDA where there is one: it ran on the CPU{rules}"
        if self.watcher.steps and not self._what_if and _precision(self.watcher) == "fp32":
            gpu = "" if self._stand_in is None or self._stand_in.used else "; as it runs on a GPU: --as-cuda"
            if not self.watcher.asked:
                yield f"audited as if mixed precision were added to it: --what-if fp16, or bf16{gpu}"


def _updates(watcher: Watcher, full: Sequence[tuple[Recorded, Beside]]) -> tuple[UpdateLoss, ...]:
    """Return what half precision has lost of changes; from one round to the next, where nothing else shows it."""
    lost = (*watcher.updates.losses, *_written(watcher, full), *watcher.averages.losses)
    return lost if any(2 * one.stuck > one.moved for one in lost) else (*lost, *watcher.updates.rounds.losses)


def _written(watcher: Watcher, full: Sequence[tuple[Recorded, Beside]]) -> Iterable[UpdateLoss]:
    """Return what was lost of what steps write into tensors that modules or the script hold, each in the last of them.

    Not where it was found that it adds up over many steps, as it does where a script compensates for rounding.
    """
    found = {loss.name: loss for _, beside in full for loss in beside.updates}
    held_now = (
        (f"{name}.{path}", one.tensor)
        for name, model in watcher.tape.models()
        for path, one in held(model).items()
    )
    kept = {path for path, tensor in held_now if path in found and watcher.averages.keeps(tensor)}
    return [*(loss for name, loss in found.items() if name not in kept), *watcher.tape.looks.carried.losses]


def _uncalled(watcher: Watcher) -> dict[str, int]:
    """Return how many steps went by in which nothing began that a recording could begin with."""
    if not watcher.steps or watcher.tape.recorded or watcher.tape.given_up:
        return {}
    return {
        "steps in which no module was seen to be called: through torch.func, or a forward by its name": watcher.steps
    }


def _used(judged: Sequence[Recorded], loop: Loop) -> list[Recorded]:
    """Return the steps that count: a skip changes no weight, unless the loss itself overflowed: no scale helps then."""
    skipped = {event.step for event in loop.scales if event.skipped}
    return [
        step
        for step in judged
        if not (step.dropped or step.step in skipped) or not math.isfinite(step.losses[0])
    ]


def _comparable(recorded: Sequence[Recorded], loop: Loop) -> tuple[list[Recorded], list[Recorded]]:
    """Return the recorded steps that can be added up, and those that are to be judged.

    Added up are those at the last scale at which the scaler did not look for another one while FP32 ran beside it, and
    in the precision that it had then. Judged are those of all scales at which it did not look for another one.
    """
    low = [step for step in recorded if step.precision != "fp32"] or list(recorded)
    low = [step for step in low if not step.dropped] or low
    learned = {step.step for step in settled(low)}
    low = [step for step in low if step.step not in learned]
    calm = [step for step in low if not _searching(step, loop, low)]
    full = [step for step in calm or low if step.beside is not None]
    if not full:
        return [], []
    last = full[-1]
    same = last.precision, last.log2_scale
    alike = [step for step in calm or low if (step.precision, step.log2_scale) == same]
    return alike, [step for step in calm if step.precision == last.precision != "fp32"]


def _searching(step: Recorded, loop: Loop, recorded: Sequence[Recorded]) -> bool:
    """Tell whether a step is one of those in a row that a GradScaler skips until it has found its scale.

    They are few, or more steps were taken after them.
    """
    losses = step.losses if step.beside is not None else step.losses[:1]
    if not step.overflowed or not all(map(math.isfinite, losses)):
        return False
    if not loop.count(Kind.STEP) + loop.count(
        Kind.SCALER_STEP
    ):  # weights moved by hand, which would not be finite in a later step if this one counted
        later = recorded[recorded.index(step) + 1 :]
        return any(not one.overflowed and math.isfinite(one.losses[0]) for one in later)
    update, updates = loop.update_of(step.step), 0
    if update is not None:
        skipped, at, updates = loop.skips(update[0]), update[1], len(loop.updates(update[0]))
        ends = loop.update_of(max(step.step, step.last)) or update  # several optimizers may have taken turns
        at = next((one for one in skipped if at <= one <= ends[1]), at)
    elif step.scaling.known or loop.scales:
        # by hand: a scale that is not lowered after it has let the step pass
        skipped, at = [event.step for event in loop.scales if event.skipped], step.step
    else:  # there is no scaler but that of --what-if, which acts in recorded steps
        at, numbered = recorded.index(step), enumerate(recorded)
        skipped = [number for number, one in numbered if one.log2_scale and one.overflowed]
    first = last = at
    while first in skipped:
        first -= 1
    while last in skipped:
        last += 1
    many = last - first - 1
    taken = updates - last - sum(skip > last for skip in skipped)
    return many > 0 and (many < MANY_SKIPS or taken > many)


def _precision(watcher: Watcher) -> str:
    """Return the precision of the recorded steps; without any, the one that a step failed in, or of autocast."""
    found = [step.precision for step in watcher.tape.recorded if step.precision != "fp32"]
    if found or watcher.tape.recorded:
        return (found or ["fp32"])[-1]
    entered = [event.autocast for _, event in watcher.loop().sequence(1) if event.kind is Kind.AUTOCAST]
    dtype = watcher.tape.failed_in or (entered or [""])[-1]
    return SHORT_DTYPE[dtype] if dtype in HALVES else "fp32"


def _said(watcher: Watcher) -> Iterator[str]:
    """Yield what has to be said of how this was seen."""
    steps, recorded = watcher.steps, len(watcher.tape.recorded)
    full = sum(one.beside is not None for one in watcher.tape.recorded)
    if steps:
        without = f", {recorded - full} without a reference" if full < recorded else ""
        others = "; the others were only counted" if recorded < steps else ""
        parts = f"{full} parts" if recorded > steps else str(full)
        yield f"{parts} of {plural(steps, 'step')} recorded in full{without}{others}"
    if recorded:
        yield (
            "the FP32 reference runs beside the script: each operation runs a second time on FP32 inputs, with the "
            "script's random draws and branches; no step was repeated"
        )
    if watcher.compiler.asked and recorded:
        yield (
            "what torch.compile was given ran eagerly in the recorded steps, so that its operations can be seen: "
            "rounding and random draws there are eager ones"
        )
    if scaling := watcher.loop().scaling:
        yield f"loss scaling unknown: {scaling}"
    if watcher.children:
        yield f"{watcher.children} child processes were started; what they did was not seen"


def _environment() -> dict[str, str]:
    gpu = torch.cuda.is_available() and AsCuda.now is None
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "kernel": "compiled" if Arena("cpu").native() else "torch operations",
    }
