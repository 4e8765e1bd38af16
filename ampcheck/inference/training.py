"""Training with half-precision weights: each tensor's way over several steps beside FP32's."""

from dataclasses import replace

from ampcheck.diagnose.rules.optimizer_eps import zero_eps
from ampcheck.diagnose.suspects import Suspect, suspects
from ampcheck.fix.long_trial import TrainingSetup, trained
from ampcheck.fix.param_groups import group_modules
from ampcheck.fix.search import Search
from ampcheck.fix.verify import comparison
from ampcheck.inference.casting import Way, as_asked, cast_inputs, restored
from ampcheck.inference.course import Moved, State, Trainer, losses_of, lost
from ampcheck.inference.optimizer_state import words
from ampcheck.inference.remedies import SAFE_EPS, WAYS, claims
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.dtypes import DTYPES
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_parameters
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.pair import SAMPLES, pair_errors
from ampcheck.observe.step import Step, StepRaised, StepRun, Widened, failed, recorded
from ampcheck.targets.spec import Target
from ampcheck.values.outcome import Outcome
from ampcheck.values.parts import outcome_of
from ampcheck.values.plan import Claim, Plan, Tried
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress, Settings
from ampcheck.values.trace import UpdateLoss
from ampcheck.values.wording import percent, plural

#: Steps of a course where the target does not say how many it takes.
STEPS = 20


def audit_training(report: Report, target: Target, settings: Settings, progress: Progress) -> Report:
    """Return the report with how half-precision weights train beside FP32 ones, and with what heals."""
    steps = target.steps or settings.verify_steps or STEPS
    way = Way(DTYPES[report.precision], weights=True, keep=settings.keep)
    trainer = Trainer(target, steps, scaled=target.scaled and report.precision == "fp16")
    report = _first_step(report, target, way, progress)
    progress(f"training {steps} steps in FP32")
    wide = trainer.run(Way())
    progress(f"training {steps} steps in {report.precision}")
    if report.low.failure is not None or not report.judgeable:
        return report
    low = trainer.run(way)
    if low.failure is not None:
        report = replace(report, low=replace(report.low, failure=low.failure))
        return _with_master_weights(report, target, steps, low.failure.message)
    rows = losses_of(wide, low)
    notes = (*report.notes, f"{plural(steps, 'step')} were trained both ways")
    advice = (*report.advice, *_of_optimizer(wide, low, report.precision))
    report = replace(report, updates=rows, notes=notes, advice=advice)
    bad = lost(rows)
    if not bad:
        return replace(report, plan=Plan(report.precision, cast="weights"))
    local = _local(report, target, rows, bad)
    report = _healed(report, settings, trainer, wide, local) if local else report
    rest = [row for row in bad if row not in local or report.plan is None]
    if not rest:
        return report
    report = _by_group(report, settings, trainer, wide, rest)
    ways = (*WAYS, SAFE_EPS) if low.vanishing else WAYS
    names = [row.name for row in rest]
    shown = claims(lambda updates: trainer.run(way, updates).way, wide.way, names, ways)
    return _with_master_weights(replace(report, claims=(*report.claims, *shown)), target, steps, _words(rest))


def _of_optimizer(wide: Moved, low: Moved, precision: str) -> tuple[str, ...]:
    """Return what is to be said of an optimizer's own numbers in half precision."""
    shown = [*words(wide.moments, low.moments, precision), *low.caveats]
    if low.vanishing:
        shown.append(zero_eps(low.vanishing, precision))
    return tuple(shown)


def _by_group(
    report: Report, settings: Settings, trainer: Trainer, wide: Moved, rest: list[UpdateLoss]
) -> Report:
    """Return the report with the parameter groups in FP32 whose updates are lost, where the others' are not."""
    target = trainer.target
    groups = group_modules(target.model, target.optimizer) if target.optimizer is not None else {}
    bad = {groups.get(row.name.rpartition(".")[0], "") for row in rest}
    if "" in bad or not bad < set(groups.values()):
        return report
    names = tuple(path for path, group in groups.items() if group in bad)
    way = Way(DTYPES[report.precision], weights=True, keep=(*settings.keep, *names))
    course = trainer.run(way)
    still = {row.name for row in lost(losses_of(wide, course))} & {row.name for row in rest}
    claim = f"keep {' and '.join(sorted(bad))} of the optimizer in FP32: {', '.join(names)}"
    tried = Tried.REFUTED if still else Tried.CONFIRMED
    after = (
        f"{plural(len(still), 'tensor')} of them still do not move"
        if still
        else "all reach the values that FP32 gives them"
    )
    return replace(report, claims=(*report.claims, Claim(claim, tried, _words(rest), after)))


def _local(
    report: Report, target: Target, rows: tuple[UpdateLoss, ...], bad: list[UpdateLoss]
) -> list[UpdateLoss]:
    """Return the tensors that a module in FP32 is the remedy for: averages, and weights where most others move well.

    Where most of the weights are lost, the remedy is not a module: it is how they are updated.
    """
    trained_ones = {f"{m}.{n}".lstrip(".") for m, n, p in named_parameters(target.model) if p.requires_grad}
    weights = [row for row in bad if row.name in trained_ones]
    few = 2 * len(weights) <= sum(row.name in trained_ones for row in rows)
    harmed = report.outcomes["settled"].harmed
    return bad if harmed or few else [row for row in bad if row.name not in trained_ones]


def _first_step(report: Report, target: Target, way: Way, progress: Progress) -> Report:
    """Return the report with the first step recorded with FP32 weights and with cast ones, and their gradients."""
    before = Snapshot(target.model, list(target.batches), target.loss, target.after_step)
    batch = target.batch(0)
    with restored(before):
        progress("FP32 reference")
        Widened(target.model, [batch])
        wide, wide_grads = _record(Step(target.model, batch, target.loss))
        before.restore()
        progress(f"{report.precision} weights")
        with as_asked(target.model, way):
            given = cast_inputs(batch, way.dtype) if way.dtype is not None else batch
            low, grads = _record(Step(target.model, given, target.loss), can_fail=True)
    errors = pair_errors(wide.fetched, low.fetched, 0) if low.trace.failure is None else {}
    outcome = _outcome(wide, low, wide_grads, grads)
    return replace(
        report,
        reference=wide.trace,
        low=low.trace,
        errors=errors,
        error_jumps=low.error_jumps(wide.trace, errors, report.dtype),
        outcomes={"settled": outcome},
    )


def _record(step: Step, *, can_fail: bool = False) -> tuple[StepRun, State]:
    """Run and record a step as it is, without autocast; return its gradients by parameter too."""
    recorder = Recorder(step.model, samples=SAMPLES, execute=execute)
    try:
        done = recorded(step, recorder)
    except StepRaised as raised:
        if not can_fail or raised.out_of_memory:
            raise
        return failed(raised), {}
    held = {
        f"{module}.{name}".lstrip("."): parameter.grad.detach().float()
        for module, name, parameter in named_parameters(step.model)
        if parameter.grad is not None
    }
    return done, held


def _outcome(wide: StepRun, low: StepRun, before: State, after: State) -> Outcome:
    if low.trace.failure is not None:
        return Outcome(0, raised=f"{low.trace.failure.kind}: {low.trace.failure.message}")
    shared = [name for name in before if name in after]
    rows = {name: comparison(before[name], after[name], 0).tolist() for name in shared}
    return outcome_of(rows, low.fetched.losses[0], wide.fetched.losses[0], 0)


def _words(bad: list[UpdateLoss]) -> str:
    moved = sum(row.moved for row in bad)
    share = sum(row.stuck + row.wrong for row in bad) / moved
    elements = f"{percent(share)} of the elements of {plural(len(bad), 'tensor')}"
    return f"{elements} do not reach the values that FP32 gives them"


def _healed(
    report: Report, settings: Settings, trainer: Trainer, wide: Moved, local: list[UpdateLoss]
) -> Report:
    """Return the report with the fewest modules in FP32 with which these tensors go where FP32 takes them."""
    dtype = DTYPES[report.precision]
    wanted = {row.name for row in local}
    if report.outcomes["settled"].harmed:
        owners = [one for one in suspects(report) if one.module]
    else:
        holders = dict.fromkeys(row.name.rpartition(".")[0] for row in local)
        owners = [Suspect(module=name) for name in holders if name]

    def heals(items: tuple[Suspect, ...]) -> bool:
        way = Way(dtype, weights=True, keep=(*settings.keep, *(item.module for item in items)))
        try:
            course = trainer.run(way)
        except Exception:  # noqa: BLE001  # the user's code may raise anything
            return False
        return course.failure is None and not wanted & {row.name for row in lost(losses_of(wide, course))}

    found = Search(heals, settings.budget).run(owners) if owners else None
    if found is None or not found.heals:
        return report
    names = tuple(item.module for item in found.items)
    plan = Plan(report.precision, (*settings.keep, *names), cast="weights", outputs="cast-back")
    claim = f"keep {', '.join(names)} in FP32, with its outputs cast back to {report.precision}"
    after = (
        f"after {trainer.steps} steps {', '.join(sorted(wanted)[:3])} have the values that FP32 gives them"
    )
    verdict = Claim(claim, Tried.CONFIRMED, _words(local), after)
    return replace(report, plan=plan, claims=(*report.claims, verdict))


def _with_master_weights(report: Report, target: Target, steps: int, before: str) -> Report:
    """Return the report with the remedy that needs no half-precision weights: FP32 weights under autocast."""
    plan = Plan(report.precision)
    course = TrainingSetup.of(target)
    with restored(Snapshot(target.model)):
        Widened(target.model)
        verdict = trained(course, plan, min(steps, STEPS))
    claim = f"keep the weights in FP32 and run under {report.precision} autocast: {verdict.claim}"
    verdict = replace(verdict, claim=claim, before=before)
    return replace(report, plan=report.plan or plan, claims=(*report.claims, verdict))
