"""What can be wrong with a step in low precision: one documented function a rule.

A rule takes a report without findings and returns its findings; its docstring is the manual. To add a rule,
write the function and put it into RULES.
"""

from collections.abc import Callable

from ampcheck.diagnose.rules.aftermath import state_left_behind, training_apart
from ampcheck.diagnose.rules.backward_unscaled import unscaled_backward
from ampcheck.diagnose.rules.casts import cast_ping_pong
from ampcheck.diagnose.rules.causes import by_cause
from ampcheck.diagnose.rules.constants import lost_constant
from ampcheck.diagnose.rules.dtypes import step_raises
from ampcheck.diagnose.rules.gradients import (
    gradient_overflow,
    gradient_underflow,
    no_scale_fits,
    scaler_missing,
)
from ampcheck.diagnose.rules.half import half_precision_parameters, half_precision_reduction, scaler_useless
from ampcheck.diagnose.rules.harm import with_harm
from ampcheck.diagnose.rules.installed import overridden
from ampcheck.diagnose.rules.integers import wrong_integers
from ampcheck.diagnose.rules.lines_to_change import with_lines
from ampcheck.diagnose.rules.loop_order import (
    clip_after_step,
    clip_before_unscale,
    scale_not_updated,
    step_beside_scaler,
)
from ampcheck.diagnose.rules.loop_ranks import ranks_disagree
from ampcheck.diagnose.rules.loop_reading import read_before_unscale
from ampcheck.diagnose.rules.loop_regions import (
    amp_switched_off,
    backward_inside_autocast,
    forward_outside_autocast,
    stale_weight_cast,
    validated_in_another_precision,
)
from ampcheck.diagnose.rules.loop_rest import (
    cleared_before_step,
    infinite_metric,
    private_overflow_check,
    scaler_not_saved,
    schedule_on_skipped_steps,
    undivided_accumulation,
)
from ampcheck.diagnose.rules.loop_scale import scale_collapse
from ampcheck.diagnose.rules.loop_unscaled import unscaled_in_part, unscaled_twice
from ampcheck.diagnose.rules.range import forward_overflow, forward_underflow, near_overflow
from ampcheck.diagnose.rules.recipes import (
    recipe_dimensions,
    recipe_harm,
    recipe_in_use,
    recipe_missed,
    recipe_undetermined,
    recipe_weak,
)
from ampcheck.diagnose.rules.rounding import precision_loss
from ampcheck.diagnose.rules.scalers_anew import scaler_made_anew
from ampcheck.diagnose.rules.stored import cast_overflow, cast_rounding
from ampcheck.diagnose.rules.taken import changed_gradients, rounded_before, wrong_picks
from ampcheck.diagnose.rules.updates import lost_update
from ampcheck.diagnose.subjects import classed
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.report import Report

Rule = Callable[[Report], list[Finding]]

#: By code; within a severity findings come in this order, causes before what follows from them.
RULES: dict[str, Rule] = {
    "AMP301": step_raises,
    "AMP105": cast_overflow,
    "AMP505": cast_rounding,
    "AMP101": forward_overflow,
    "AMP103": forward_underflow,
    "AMP501": precision_loss,
    "AMP202": gradient_overflow,
    "AMP201": gradient_underflow,
    "AMP204": scaler_missing,
    "AMP504": lost_update,
    "AMP506": state_left_behind,
    "AMP507": training_apart,
    "AMP508": wrong_integers,
    "AMP509": rounded_before,
    "AMP510": wrong_picks,
    "AMP206": scale_collapse,
    "AMP203": no_scale_fits,
    "AMP104": lost_constant,
    "AMP502": half_precision_reduction,
    "AMP102": near_overflow,
    "AMP302": half_precision_parameters,
    "AMP205": scaler_useless,
    "AMP303": cast_ping_pong,
    "AMP401": clip_before_unscale,
    "AMP402": clip_after_step,
    "AMP403": step_beside_scaler,
    "AMP404": unscaled_twice,
    "AMP405": scale_not_updated,
    "AMP406": forward_outside_autocast,
    "AMP407": backward_inside_autocast,
    "AMP408": unscaled_backward,
    "AMP409": validated_in_another_precision,
    "AMP410": amp_switched_off,
    "AMP411": undivided_accumulation,
    "AMP412": schedule_on_skipped_steps,
    "AMP413": scaler_not_saved,
    "AMP414": private_overflow_check,
    "AMP415": ranks_disagree,
    "AMP416": read_before_unscale,
    "AMP417": scaler_made_anew,
    "AMP418": unscaled_in_part,
    "AMP419": stale_weight_cast,
    "AMP420": cleared_before_step,
    "AMP421": changed_gradients,
    "AMP422": infinite_metric,
    "AMP701": recipe_harm,
    "AMP702": recipe_dimensions,
    "AMP703": recipe_missed,
    "AMP704": recipe_weak,
    "AMP705": recipe_undetermined,
    "AMP706": recipe_in_use,
}

#: What dtypes, casts, settings and the numbers of the code tell: the rules for a dry run.
WITHOUT_VALUES = frozenset({"AMP104", "AMP205", "AMP301", "AMP302", "AMP303"})

#: What is about gradients, scalers and weights that are trained.
OF_TRAINING = frozenset(
    {"AMP201", "AMP202", "AMP203", "AMP204", "AMP205", "AMP302", "AMP504", "AMP506", "AMP507"}
)


#: The rules for an audit of recipes: bf16 against FP32 is an audit of its own.
OF_RECIPES = frozenset({"AMP301", "AMP701", "AMP702", "AMP703", "AMP704", "AMP705"})


def asked(code: str, report: Report) -> bool:
    """Tell whether a report has what a rule looks at."""
    if report.recipes is not None:
        return code in OF_RECIPES
    if report.mode == "infer" and code in OF_TRAINING:
        return False
    return not report.dry or code in WITHOUT_VALUES


def raise_it(_: str, error: Exception) -> None:
    """Let an error of a rule end the diagnosis."""
    raise error


def diagnose(report: Report, failed: Callable[[str, Exception], None] = raise_it) -> tuple[Finding, ...]:
    """Return the findings of all rules, the worst first, in the order of the rules within a severity.

    What follows from another finding is listed below that. `failed` hears of rules that end with an error.
    """
    found: list[Finding] = []
    for code, rule in RULES.items():
        if asked(code, report):
            try:
                found += rule(report)
            except Exception as error:  # noqa: BLE001  # what the others have found is worth more than one rule
                failed(code, error)
    if not report.judgeable:  # FP32 has no finite loss, so nothing proves an error
        found = [finding for finding in found if finding.severity is not Severity.ERROR]
    shown = sorted(with_harm(report, found), key=lambda finding: finding.severity.rank)
    named = (overridden(report, classed(report, finding)) for finding in by_cause(report, shown))
    return tuple(with_lines(report, finding) for finding in named)
