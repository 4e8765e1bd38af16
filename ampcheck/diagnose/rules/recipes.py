"""What FP8 and FP4 recipes do to a step, and what a library would do with them that nobody asked for."""

from ampcheck.values.findings import Finding, Severity
from ampcheck.values.recipe_audit import OperandStats, RecipeResult
from ampcheck.values.recipes import RECIPES, recipe
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import percent, plural, some

#: Modules that a message names.
_NAMED = 4
#: Share of an operand whose loss explains a harm.
_TOLD = 0.01


def recipe_harm(report: Report) -> list[Finding]:
    """A recipe moves the gradient of a parameter too far away from that of bf16.

    What it finds: under the recipe, some parameter's gradient differs from that of the same step in bf16 by 40 % or
    more (75 % for four-bit formats), in the relative L2 norm. Parameters that bf16 itself does not determine to 20 %
    are left out. Where the target gives several batches, the same is asked after a short training in bf16, and where
    these differ by more than the gradient's own size, its error counts as a share of that, twice the size at most.

    Why it matters: such a gradient points elsewhere, step after step. It says pass or fail; it does not say by how
    much a loss will suffer.

    What to do: follow the plan: it names the cheapest of another recipe, single GEMMs, or the layers that have to stay
    in bf16, and it was tried.

    Example: a router whose scores lie close together: eight bits send tokens to other experts.

    When to ignore it: when the parameter does not matter to you; a short training (--verify-steps) tells more.
    """
    return [_harm(report, result) for result in _results(report) if result.harmed]


def recipe_dimensions(report: Report) -> list[Finding]:
    """Layers have dimensions that a recipe cannot take.

    What it finds: weights whose dimensions are no multiple of 16, 32 or 128, whichever the recipe needs, and inputs
    with such a number of rows.

    Why it matters: some libraries raise, others leave the layer in bf16 without a word. The audit still rounds
    the layer.

    What to do: pad the dimension (a vocabulary to a multiple of 128), or name the layer among those kept in bf16.

    Example: an output head for 10 classes.

    When to ignore it: when you know that the layer stays in bf16, and mean it.
    """
    return [_dimensions(report, result) for result in _results(report) if result.misfits]


def recipe_missed(report: Report) -> list[Finding]:
    """A library that swaps nn.Linear modules does not reach a layer, or breaks it.

    What it finds: weights that are multiplied outside of an nn.Linear's own forward (attention's projections, tied
    heads, experts in one tensor), and subclasses of nn.Linear whose forward the conversion drops.

    Why it matters: torchao and the libraries built on it convert modules by class. What they miss trains in bf16
    although the recipe was asked for; a forward that is dropped changes what the model computes.

    What to do: leave subclasses out by the filter; expect no speed from what is missed.

    Example: nn.MultiheadAttention: its out_proj is converted, and the converted forward never runs.

    When to ignore it: when you convert the model by other means, TransformerEngine's own layers for instance.
    """
    audit = report.recipes
    names = (result.outcome.recipe.partition(":")[0] for result in audit.results) if audit is not None else ()
    if audit is None or not audit.missed or all(RECIPES[name].library != "torchao" for name in names):
        return []
    dropped = [name for name, why in audit.missed.items() if "drops" in why]
    first = next(iter(dropped or audit.missed))
    more = len(audit.missed) - 1
    others = f"; so {'does' if more == 1 else 'do'} {plural(more, 'other module')}" if more else ""
    return [
        Finding(
            "AMP703",
            "recipe-missed",
            "recipe",
            Severity.WARNING if dropped else Severity.INFO,
            f"torchao's conversion does not do what it says for {first or 'the root'}: it {audit.missed[first]}"
            f"{others}",
            tuple(
                _site(name) for name in [*dropped, *(name for name in audit.missed if name not in dropped)]
            ),
        )
    ]


def recipe_weak(report: Report) -> list[Finding]:
    """One step says little about a four-bit recipe.

    What it finds: a verdict on NVFP4 that rests on the gradient of one step alone.

    Why it matters: every operand is off by about ten percent, so that healthy gradients in a small model are off by
    20 to 90 %. What one step shows is explanation, not evidence.

    What to do: give several batches, or --verify-steps 100: a short training then decides.

    Example: any small model under te-nvfp4.

    When to ignore it: when a training of your own has shown more.
    """
    return [
        Finding(
            "AMP704",
            "recipe-weak",
            "recipe",
            Severity.WARNING if _counts(report, result.outcome.recipe) else Severity.INFO,
            f"{result.outcome.recipe}: this verdict is weak, because one step says little about a four-bit "
            "format; decide by a short training (--verify-steps 100)",
        )
        for result in _results(report)
        if result.outcome.four_bit and result.ends_as_bf16 is None
    ]


def recipe_undetermined(report: Report) -> list[Finding]:
    """bf16 itself does not determine some gradients, so no recipe can be judged by them.

    What it finds: parameters whose gradient in bf16 differs from FP32 by 20 % or more.

    Why it matters: an error of a recipe cannot be shown from that of bf16 there.

    What to do: audit bf16 first (--precision bf16), or the trained weights (--weights FILE).

    Example: the last layers of a network with random weights that magnifies any rounding.

    When to ignore it: when these few parameters are known to be noisy.
    """
    audit = report.recipes
    if audit is None or not audit.undetermined:
        return []
    names = sorted(audit.undetermined, key=lambda name: -audit.undetermined[name])
    whole = len(names) + len(audit.judged)
    return [
        Finding(
            "AMP705",
            "recipe-undetermined",
            "recipe",
            Severity.WARNING if not audit.judged else Severity.INFO,
            f"{plural(len(names), 'gradient')} of {whole} could not be judged: bf16 itself is off by 20 % or more from "
            f"FP32 there, {some(names, _NAMED)}",
            tuple(_site(name.rpartition(".")[0]) for name in names),
            {"parameters": len(names), "of": whole},
        )
    ]


def recipe_in_use(report: Report) -> list[Finding]:
    """A script trains layers in FP8, and what that rounding does is not in this report.

    What it finds: layers that torchao or TransformerEngine made, and casts to FP8 that the script writes itself. They
    run in the FP32 reference as well, so no figure of the report shows what they lose. Of the script's own casts the
    message says what each loses, and how far a product in FP8 is off from bf16's; what that does to training it does
    not say.

    Why it matters: a report on bf16 says nothing of FP8.

    What to do: read the report that `ampcheck run` adds behind this one: there the recipe of these layers is tried
    against bf16. Of TransformerEngine's layers and of the script's own casts there is none, and the report is never
    safe: ampcheck model.py --precision fp8:RECIPE.

    Example: convert_to_float8_training(model) without a filter, which converts the head and every router too.

    When to ignore it: after such an audit.
    """
    if not report.in_use:
        return []
    recipes = dict.fromkeys(layer.recipe for layer in report.in_use if layer.recipe)
    named = " and ".join(recipes) or "an unknown recipe"
    asked = f"fp8:{next(iter(recipes))}" if len(recipes) == 1 else "fp8"
    still = [layer.module for layer in report.in_use if not layer.runs]
    silent = f"; the forward of {some(still, _NAMED)} never runs, so it trains in bf16" if still else ""
    notes = "".join(
        f"; {note}" for note in dict.fromkeys(layer.note for layer in report.in_use if layer.note)
    )
    libraries = " and ".join(dict.fromkeys(layer.library for layer in report.in_use))
    judged = any(layer.judged for layer in report.in_use)
    where = "a report of its own follows" if judged else f"audit the model with --precision {asked}"
    return [
        Finding(
            "AMP706",
            "recipe-in-use",
            "recipe",
            Severity.WARNING,
            f"{plural(len(report.in_use), 'layer')} train in FP8 by {libraries} ({named}), which this report does not "
            f"judge: {where}{silent}{notes}",
            tuple(_site(layer.module) for layer in report.in_use),
            {"layers": len(report.in_use)},
        )
    ]


def _results(report: Report) -> tuple[RecipeResult, ...]:
    return report.recipes.results if report.recipes is not None else ()


def _harm(report: Report, result: RecipeResult) -> Finding:
    """Return the finding of one recipe; among several only the one that a plan answers is an error."""
    audit = report.recipes
    assert audit is not None
    harm = result.harm
    name, error = harm.worst
    layers = result.plan.bf16_modules if result.plan is not None and result.plan.healed else ()
    where = layers or (name.rpartition(".")[0],)
    noise = audit.noise.get(name, 0.0) if harm is result.outcome else 0.0
    beside = f"; two batches differ there by {percent(noise)}" if noise else ""
    when = f" after {plural(audit.steps, 'step')} of bf16" if harm is result.trained else ""
    weak = harm.four_bit and result.ends_as_bf16 is None
    numbers = {"error": error} | ({"noise": noise} if noise else {})
    return Finding(
        "AMP701",
        "recipe-harm",
        "recipe",
        _severity(audit.asked, weak=weak, alternatives=any(not other.harmed for other in audit.results)),
        f"{harm.recipe} does not train as bf16 does: {harm.words}{when}{beside}{_why(result, layers)}",
        tuple(_site(module) for module in where),
        numbers,
    )


def _severity(asked: str, *, weak: bool, alternatives: bool) -> Severity:
    if weak:
        return Severity.WARNING
    return Severity.INFO if ":" not in asked and alternatives else Severity.ERROR


def _why(result: RecipeResult, layers: tuple[str, ...]) -> str:
    """Return what explains the harm: the layers whose exception heals it, and what their operands lose."""
    shown = f"; the harm comes from {some(list(layers), _NAMED)}" if layers else ""
    rows = [row for row in result.operands if not layers or row.module in layers]
    worst = max(rows, key=_loss, default=None)
    if worst is None or _loss(worst) < _TOLD:
        return shown
    underflowed = worst.underflow_share >= worst.saturated_share
    what = "become zero" if underflowed else "are cut off"
    place = f"{worst.operand.replace('_', ' ')} of {worst.module} in {worst.gemm}"
    return f"{shown}; of the {place}, {percent(_loss(worst))} {what} in {worst.format}"


def _loss(row: OperandStats) -> float:
    return max(row.underflow_share, row.saturated_share)


def _counts(report: Report, name: str) -> bool:
    """Tell whether a recipe is the one asked for, or the one that the plan takes."""
    asked = report.recipes is not None and ":" in report.recipes.asked
    return asked or (report.plan is not None and report.plan.recipe == name)


def _dimensions(report: Report, result: RecipeResult) -> Finding:
    chosen = recipe(result.outcome.recipe)
    names = list(result.misfits)
    does = "raises there" if chosen.raises else "leaves such layers in bf16, or pads them"
    return Finding(
        "AMP702",
        "recipe-dimensions",
        "recipe",
        Severity.WARNING if _counts(report, chosen.name) else Severity.INFO,
        f"{chosen.name} cannot take {plural(len(names), 'layer')} ({chosen.library} {does}): "
        f"{names[0] or 'the root'}, where {result.misfits[names[0]]}"
        + (f"; {some(names[1:], _NAMED)}" if names[1:] else ""),
        tuple(_site(name) for name in names),
        {"layers": len(names)},
    )


def _site(module: str) -> Site:
    return Site(module, "linear", "output", Phase.FORWARD, "bfloat16")
