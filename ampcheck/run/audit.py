"""The audit: a target's steps run in pairs, compared, and judged."""

import platform
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from ampcheck.diagnose.verdict import diagnosed
from ampcheck.fix.advisor import Advisor
from ampcheck.fix.framework_terms import in_terms, in_use
from ampcheck.fix.long_trial import TrainingSetup, trained
from ampcheck.fix.param_groups import group_sentences
from ampcheck.fix.patch import written
from ampcheck.fix.printed import proved
from ampcheck.fix.verify import Lab
from ampcheck.inference import audit_otherwise, coverage_of, runs_otherwise, what_runs
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.model.depth import room
from ampcheck.observe.model.prepare import compiled, shape_lazy_parameters
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.model.updates import lost_updates
from ampcheck.observe.outer_regions import outside_of_autocast, outside_of_inference
from ampcheck.observe.script import open_watches
from ampcheck.observe.statistics.measure import Arena
from ampcheck.observe.statistics.sampling import words
from ampcheck.observe.step import Step, clear_gradients, set_gradients, users_code
from ampcheck.run.recipes import with_recipes
from ampcheck.run.step_pair import Judged, Pair, covered, reproduced, run_pair, trained_tensors
from ampcheck.targets.spec import ZOOS, Target
from ampcheck.values.plan import Plan
from ampcheck.values.recipes import is_recipe
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress, Settings
from ampcheck.values.trace import Trace


def audit(target: Target, settings: Settings, progress: Progress = lambda _: None) -> Report:
    """Run the paired steps of a target and report what low precision does to them.

    Whatever happens, the model, the batches and all random generators are left as they were.
    """
    with open_watches.audit(), outside_of_autocast(), outside_of_inference():
        report = _alone(target, settings, progress)
    stored = _stored_in_half(target.model)
    return replace(report, low=replace(report.low, not_audited={**report.low.not_audited, **stored}))


def _stored_in_half(model: Any) -> dict[str, int]:
    """Return that FP32's own weights were not seen, where the model comes without them."""
    known = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    held = Counter(known[p.dtype] for *_, p in named_parameters(model) if p.dtype in known)
    return {f"what rounding weights to {dtype} lost before the audit": n for dtype, n in held.items()}


def _alone(target: Target, settings: Settings, progress: Progress) -> Report:
    if is_recipe(settings.precision):
        bf16 = _audit(target, replace(settings, precision="bf16", verify=False, steps=1), progress)
        if not bf16.judgeable or bf16.low.failure is not None:
            return bf16
        report = with_recipes(bf16, target, settings, progress)
        return diagnosed(report, bf16.verdict.coverage)
    if settings.precision != "auto":
        return _audit(target, settings, progress)
    report = _audit(target, replace(settings, precision="fp16", verify=True), progress)
    if not report.judgeable:
        return report
    as_it_is = report.plan is not None and report.plan == Plan("fp16", scaler=report.plan.scaler)
    if report.mode == "infer" or report.cast == "weights":
        as_it_is = not report.outcomes["settled"].harmed
    other = report.outcomes.get("bf16", report.outcomes.get(f"bf16-{report.cast}"))
    if as_it_is or other is None or other.harmed:
        return report
    report = _audit(target, replace(settings, precision="bf16", verify=True), progress)
    return replace(report, notes=(*report.notes, "bf16 was chosen: fp16 would need changes, bf16 needs none"))


def _audit(target: Target, settings: Settings, progress: Progress) -> Report:
    with room(), target.active():
        notes = target.notes + _prepare(replace(target, loss=what_runs(target, settings))) + _less(settings)
        report = Report(
            target.name,
            settings.precision,
            log2_scale=_first_scale(target.model, settings),
            reference=Trace(),
            low=Trace(),
            stand_in_loss=target.stand_in_loss,
            scaling_open=settings.log2_scale is None and target.name.partition(":")[0] not in ZOOS,
            notes=notes,
            environment=_environment(target.model, settings),
        )
        if runs_otherwise(target, settings):
            report = audit_otherwise(report, target, settings, progress)
            return diagnosed(report, coverage_of(report, target, settings))
        before = Snapshot(target.model, target.loss, target.after_step) if settings.steps > 1 else None
        try:
            report, worst = _steps(report, target, settings, progress)
        finally:
            if before is not None:
                before.restore()
        report = replace(report, outcomes={"settled": worst.outcome})
        coverage = covered(report, target, worst)
        if settings.verify and report.judgeable:
            report = _updated(report, target)
            with worst.again(before):
                report = _tried(report, target, worst.step, settings, progress)
            if worst.outcome.harmed and not report.outcomes["settled"].harmed and settings.steps > 1:
                report = replace(report, outcomes={**report.outcomes, "carried": worst.outcome})
            report = _trained(report, target, settings, progress)
        elif worst.outcome.harmed and worst.outcome.finite and report.judgeable:
            with worst.again(before):
                rounded = Lab(worst.step).rounded(DTYPES[settings.precision])
            report = replace(report, outcomes={**report.outcomes, "rounded": rounded})
    return diagnosed(report, reproduced(coverage, report, worst))


def _first_scale(model: Any, settings: Settings) -> int:
    """Return the loss scale to begin with: none where weights are float16, whose gradients GradScaler refuses."""
    refuses = any(p.dtype is torch.float16 and p.requires_grad for *_, p in named_parameters(model))
    return 0 if refuses and settings.log2_scale is None else settings.first_log2_scale


def _less(settings: Settings) -> tuple[str, ...]:
    """Return what has to be said of what is not read."""
    notes: tuple[str, ...] = ()
    if settings.layers_only:
        notes += (
            "layers only: operations inside modules were not measured, so less can be found and placed",
        )
    return notes + ((words(settings.sample),) if settings.sample else ())


def _updated(report: Report, target: Target) -> Report:
    """Return the report with what a few updates of the weights lose."""
    if target.optimizer is None:
        return report
    step = Step(target.model, target.batch(0), target.loss)
    return replace(report, updates=lost_updates(step, target.optimizer, target.after_step))


def _tried(report: Report, target: Target, step: Step, settings: Settings, progress: Progress) -> Report:
    """Return the report with what re-runs of a step say."""
    progress(f"re-running; the search for a remedy ends after {settings.budget:g} s")
    lab = Lab(step)
    report = Advisor(report, lab, progress).advise(settings.budget)
    if target.optimizer is not None:
        sentences = group_sentences(report, target.model, target.optimizer)
        report = replace(report, advice=(*report.advice, *sentences))
    if report.plan is not None:
        kinds = {module.path: module.kind for module in report.reference.modules}
        terms = in_terms(report.plan, in_use(target.file))
        forms = written(report.plan, target.file, kinds)
        patch = proved(forms, report.plan, target.file, lab)
        report = replace(report, patch=patch, advice=(*report.advice, *terms))
    return report


def _trained(report: Report, target: Target, settings: Settings, progress: Progress) -> Report:
    """Return the report with what some steps of training with the plan say."""
    if settings.verify_steps and report.plan is not None:
        progress(f"training {settings.verify_steps} steps")
        setup = TrainingSetup.of(target)
        verdict = trained(setup, report.plan, settings.verify_steps)
        report = replace(report, claims=(*report.claims, verdict))
    return report


def _prepare(target: Target) -> tuple[str, ...]:
    """Return what has to be said of the model before it is run."""
    shaped = shape_lazy_parameters(Step(target.model, target.batch(0), target.loss))
    names = compiled(target.model)
    notes: tuple[str, ...] = ()
    if shaped:
        notes += (f"a first run gave {shaped} lazy modules their shape",)
    if names:
        notes += (
            f"compiled parts were run eagerly, so that their operations can be seen: {', '.join(names)}",
        )
    return notes


def _steps(report: Report, target: Target, settings: Settings, progress: Progress) -> tuple[Report, Judged]:
    """Return the report with every step in it, and what the first harmed one came to, or the first one."""
    optimizer: Any = None
    worst: Judged | None = None
    carried: Snapshot | None = None
    for index in range(settings.steps):
        step = Step(target.model, target.batch(index), target.loss)
        last = index == settings.steps - 1
        pair = run_pair(report, step, settings, _labelled(progress, index, settings), carried)
        report = pair.report
        found = pair.judged.outcome
        if worst is None or (
            (found.harmed or found.state) and not (worst.outcome.harmed or worst.outcome.state)
        ):
            worst = pair.judged
        if last or report.low.failure is not None:
            break
        pair.after.restore()
        with users_code():
            optimizer = optimizer or TrainingSetup.of(target).build()
            _advance(target, optimizer, pair.grads)
            left = _left_behind(target, pair)
        # What is spoilt is not carried on: its own step is judged by it, and the later ones by what they do.
        carried = None if found.state else left
    assert worst is not None
    return report, worst


def _left_behind(target: Target, pair: Pair) -> Snapshot:
    """Return what low precision has left behind for its next step, the model being where FP32's next one begins."""
    if target.after_step is None:
        return pair.left
    ahead = Snapshot(target.model, target.loss, target.after_step)
    pair.left.restore_state(trained_tensors(target.model))
    target.after_step(target.model)
    left = Snapshot(target.model, target.loss, target.after_step)
    ahead.restore()
    return left


def _labelled(progress: Progress, index: int, settings: Settings) -> Progress:
    """Return a progress that says which of several steps it is."""
    if settings.steps == 1:
        return progress
    return lambda text: progress(f"{text}, step {index + 1} of {settings.steps}")


def _advance(target: Target, optimizer: torch.optim.Optimizer, grads: list[torch.Tensor | None]) -> None:
    """Update the weights with the reference's gradients, so that both precisions see the same next step."""
    set_gradients(target.model, grads)
    optimizer.step()
    clear_gradients(target.model)
    if target.after_step is not None:
        target.after_step(target.model)


def _environment(model: Any, settings: Settings) -> dict[str, str]:
    device = Step(model, None, lambda *_: None).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": name,
        "casting": "CUDA's rules on CPU tensors" if device.type == "cpu" else f"autocast of {device.type}",
        "kernel": "compiled" if Arena("cpu").native() else "torch operations",
    } | ({"sampled": f"{settings.sample} elements a tensor"} if settings.sample else {})
