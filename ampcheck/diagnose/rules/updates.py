"""Weights, averages and other states in half precision that do not take their updates."""

from dataclasses import replace

from ampcheck.diagnose.rules.framework_terms import under_autocast, weights_in_fp32
from ampcheck.diagnose.rules.loop_state import last_step, led_to
from ampcheck.diagnose.rules.makers import held_in_fp32, made_anew_at, maker_of, module_cast, only_cast
from ampcheck.diagnose.rules.optimizer_eps import vanishing_eps
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import Kind
from ampcheck.values.maker import CASTS_MODULE, Maker
from ampcheck.values.modules import within
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site, UpdateLoss
from ampcheck.values.wording import clean, location, percent, plural, some

#: Share of the elements FP32 would move that may stay where they are before updates count as lost.
STUCK_SHARE = 0.5
#: Weights up to which each is named.
_FEW = 4


def lost_update(report: Report) -> list[Finding]:
    """Weights or averages held in half precision do not move, or move to somewhere else.

    What it finds: tensors in half precision of which more than half of the elements that FP32 would change in
    the first optimizer steps keep their old value or move much further, or any become infinite or NaN; or
    most of the eighth step is lost, while gradients are about as large. What a script changes beside its training,
    averages, counters, banks and buffers, and weights that an optimizer of its own steps, in place or by making them
    anew, is followed in FP32 over many steps: there an element counts once FP32 has moved it by eight units in the last
    place, or has moved steadily while all of its changes are rounded away and will be for so long, and is lost if most
    of that is missing; so is a sum that grows infinite. FP32 weights that a script fills from half-precision copies
    before a step lose what the step before added; so do weights that a thread trains and sends in half precision, where
    it is given back what it has sent. Numbers that a checkpoint in half precision brings back as zero or infinite are
    lost, too.

    Why it matters: a change below half a unit in the last place is rounded away every time, so it never adds
    up; training stands still, or an averaged copy never follows. A second moment or an eps that is zero in half
    precision makes the update infinite.

    What to do: keep weights, averages and optimizer state in FP32 and let autocast compute in half precision; or
    use stochastic rounding; in fp16 give Adam an eps of at least 1e-4.

    Example: bf16 weights with a learning rate of 1e-5; an average with decay 0.999 held in bf16; Adam on fp16
    weights, whose eps of 1e-8 is zero.

    When to ignore it: when the optimizer rounds stochastically or compensates (Kahan summation).
    """
    bad = lost_updates(report)
    kept = report.plan.fp32_modules if report.plan is not None else ()
    healed = [loss for loss in bad if any(within(loss.name, name) for name in kept)]
    own = [loss for loss in bad if _by_script(loss)]
    placed = {loss.name.partition("[")[0] for loss in own}  # what a line writes is said there
    places = dict.fromkeys((loss.file, loss.line) for loss in own)
    rest = [one for one in bad if one not in [*healed, *own] and not _is_placed(one, placed)]
    # What an optimizer steps comes first: a script may copy it from there.
    stepped = [one for one in rest if one.stepped]
    by_line = [[loss for loss in own if (loss.file, loss.line) == place] for place in places]
    written = _together([_lost_update(report, group) for group in by_line])
    before, behind = [
        [_lost_update(report, group) for group in groups if group]
        for groups in ((healed, stepped), ([one for one in rest if not one.stepped],))
    ]
    return [*before, *written, *behind]


def _together(found: list[Finding]) -> list[Finding]:
    """Return findings on what lines write, each with what is to be done to all that one module holds.

    Such as counts of views and of clicks, whose quotient is wrong as long as one of them is.
    """
    lines: dict[str, dict[str, None]] = {}
    for one in found:
        lines.setdefault(one.sites[0].module, {}).update(dict.fromkeys(one.fix))
    return [replace(one, fix=tuple(dict.fromkeys((*one.fix, *lines[one.sites[0].module])))) for one in found]


def _is_placed(loss: UpdateLoss, placed: set[str]) -> bool:
    """Tell whether a tensor is known by a line already, maybe by the name of what holds its module."""
    return any(name == loss.name or name.endswith(f".{loss.name}") for name in placed)


def _what_became(stuck: int, wrong: int, bad: int, *, many: bool) -> tuple[str, str]:
    """Return what became of changes, and of the numbers that were to change."""
    if stuck >= wrong:
        kept = "fall short of the values that FP32 gives them" if many else "stay as they were"
        return "are rounded away", kept
    far = "" if bad >= wrong else ", or much larger than in FP32"
    return f"are not finite{far}", "moved wrongly"


def _lost_update(report: Report, bad: list[UpdateLoss]) -> Finding:
    first = bad[0]
    if first.loaded:
        return _loaded(report, bad)
    if first.in_fp32:
        return _added(report, bad)
    own = _by_script(first)
    many = report.cast == "weights" or own  # changes, of which some may have been kept
    moved = sum(loss.moved for loss in bad)
    stuck, wrong = sum(loss.stuck for loss in bad), sum(loss.wrong for loss in bad)
    share, tensors = percent(max(stuck, wrong) / moved), len({loss.name for loss in bad})
    parent = _common([loss.name.rpartition(".")[0] for loss in bad])
    bad_ones = sum(loss.infinite for loss in bad)
    effect, kept = _what_became(stuck, wrong, bad_ones, many=many)
    trained = _trained(report, first.name)
    why, larger = vanishing_eps(report) if trained and wrong > stuck else ("", ())
    counted = f": {first.stuck if stuck >= wrong else first.wrong:,} of {first.moved:,} elements {kept}"
    said = (
        f"{share} of the changes to {plural(tensors, 'tensor')} held in half precision {effect} "
        f"({first.name}{counted if first.moved > 1 else ''}){why}"
    )
    if first.before:
        said = f"{first.name} is computed in half precision, and off by {percent(first.before)} before training begins"
    file, line = last_step(report) if trained and not first.line else (first.file, first.line)
    maker = maker_of(report, first.name) or (module_cast(report) if parent and not line else None)
    if maker is not None:
        said = f"{said}; {_made_by(maker)} half precision at {maker.location}"
        # That an optimizer steps it is no mistake of that line.
        file, line = (file, line) if line and not (trained or first.stepped) else (maker.file, maker.line)
    # what the script changes beside its training
    beside = own or (report.loop is not None and not (trained or first.stepped))
    held: tuple[str, ...] = (
        held_in_fp32(
            report,
            first.name,
            parent if (own or len(bad) > 1) and parent else "",
            anew=made_anew_at(first.file, first.line) if beside else "",
            alone=_is_alone(report, first) and not (trained or first.stepped),
        ),
    )
    if first.underflows and first.line:
        held = (
            *held,
            f"# and {location(first.file, first.line)}: compute in FP32 what is added, with .float()",
        )
    dtype = first.dtype or report.dtype
    place = Site(parent, "", f"param[{first.name.rpartition('.')[2]}]", Phase.STATE, dtype, file, line)
    led = led_to(report, place.location)  # what a library steps is found at the user's line that led there
    said = f"{said}; stepped at {place.location}" if led[1] else said
    return Finding(
        "AMP504",
        "lost-update",
        "stagnant-update",
        Severity.ERROR,
        said,
        (place._replace(file=led[0], line=led[1]), place) if led[1] else (place,),
        {"lost_fraction": (stuck + wrong) / moved, "wrong_fraction": wrong / moved, "tensors": tensors},
        fix=held if beside else (*larger, *_kept(report, bad, held)),
    )


def _made_by(maker: Maker) -> str:
    return "a module is cast to" if maker.name == CASTS_MODULE else f"{clean(maker.name)} is made in"


def _added(report: Report, bad: list[UpdateLoss]) -> Finding:
    """Return what to say of tensors in FP32 that are behind: what is added, or rounds them, is in half precision."""
    first, lost = bad[0], sum(loss.stuck + loss.wrong for loss in bad)
    why = "what is added to it is computed in half precision"
    fix = "# compute in FP32 what is added here: .float() on what it is made of, before it is squared or divided"
    file, line = first.file, first.line
    if first.stepped:
        why = "it is filled from half precision before the next step"
        fix = "# fill it from a copy in FP32: .float().clone() in place of the cast to half precision"
    cast, unwritten = module_cast(report), _steps_at(report, location(file, line))
    if first.stepped and cast is not None and unwritten:
        why = "its module is cast to half precision and back before the next step"
        file, line = cast.file, cast.line
        fix = "# here: cast a copy of the module, copy.deepcopy(...), and leave in FP32 what is trained"
    module, _, name = first.name.rpartition(".")
    place = Site(module, "", f"param[{name}]", Phase.STATE, "float32")
    return Finding(
        "AMP504",
        "lost-update",
        "stagnant-update",
        Severity.ERROR,
        f"{clean(first.name)} is held in FP32, and {why}: {percent(lost / sum(loss.moved for loss in bad))} of the "
        "changes are lost",
        (place._replace(file=file, line=line),),
        {
            "lost_fraction": lost / sum(loss.moved for loss in bad),
            "tensors": len({loss.name for loss in bad}),
        },
        fix=(fix,),
    )


def _steps_at(report: Report, place: str) -> bool:
    """Tell whether an optimizer steps at a line."""
    events = () if report.loop is None else (event for _, event in report.loop.sequence(1))
    return any(event.kind in {Kind.STEP, Kind.SCALER_STEP} and event.location == place for event in events)


def _loaded(report: Report, bad: list[UpdateLoss]) -> Finding:
    loaded = [loss.name.rpartition(".")[2] for loss in bad if loss.loaded]
    first, keys = bad[0], list(dict.fromkeys(loaded))  # of many weights, the same
    gone = "zero" if first.stuck >= first.wrong else "infinite"
    if first.in_fp32:
        return _saved([loss for loss in bad if loss.loaded and loss.in_fp32], gone)
    gives = "; ".join(f'optimizer.state[p]["{key}"] = was["{key}"].clone()' for key in keys)
    place = Site(first.name.rpartition(".")[0], "", f"param[{keys[0]}]", Phase.STATE, report.dtype)
    return Finding(
        "AMP504",
        "lost-update",
        "stagnant-update",
        Severity.ERROR,
        f"load_state_dict casts {clean(first.name)} to half precision, as its weights are: "
        f"{percent(first.before)} of its numbers become {gone}",
        (place._replace(file=first.file, line=first.line),),
        {"lost_fraction": first.before, "tensors": len(loaded)},
        fix=(
            "# after this line, give the optimizer what was saved in FP32:",
            'params = [p for group in optimizer.param_groups for p in group["params"]]',
            'for p, was in zip(params, state_dict["state"].values()):',
            f"    {gives}",
        ),
    )


def _saved(bad: list[UpdateLoss], gone: str) -> Finding:
    """Return what to say of numbers that come back from a checkpoint in half precision."""
    first, names = bad[0], some(list(dict.fromkeys(loss.name.rpartition(".")[2] for loss in bad)))
    module, _, name = first.name.rpartition(".")
    loaded = Site(module, "", f"param[{name}]", Phase.STATE, "float32", first.file, first.line)
    casts = only_cast(first.file)  # else nobody knows which of them was for the checkpoint
    sites = (loaded._replace(line=casts), loaded) if casts else (loaded,)
    saves = location(first.file, casts) if casts else "where the checkpoint is saved"
    here = f"when it is loaded ({loaded.location})" if casts else "here"
    return Finding(
        "AMP504",
        "lost-update",
        "stagnant-update",
        Severity.ERROR,
        f"{clean(first.name)} was saved in half precision: {percent(first.before)} of its numbers are {gone} {here}",
        sites,
        {"lost_fraction": first.before, "tensors": len(bad)},
        fix=(f"# {saves}: {names} in FP32, without a cast to half precision",),
    )


def _is_alone(report: Report, loss: UpdateLoss) -> bool:
    """Tell whether nothing else has lost anything of what holds a tensor, and is cast as a whole."""
    holder = loss.name.partition(".")[0]
    found = {other.name.partition("[")[0] for other in report.updates}
    return sum(name.partition(".")[0] == holder for name in found) == 1


def _by_script(loss: UpdateLoss) -> bool:
    """Tell whether a line of the script's own makes the changes."""
    return bool(loss.line) and not loss.stepped


def _trained(report: Report, name: str) -> bool:
    """Tell whether a tensor is one that has a gradient."""
    module, _, leaf = name.rpartition(".")
    return any(site.module == module and site.slot == f"param_grad[{leaf}]" for site in report.low.sites)


def _kept(report: Report, bad: list[UpdateLoss], held: tuple[str, ...]) -> tuple[str, ...]:
    """Return how weights are kept in FP32: some by their names, where others are or lose nothing in half precision."""
    if len(bad) <= _FEW and all(_is_made(report, loss.name) for loss in bad):
        return tuple(dict.fromkeys(held_in_fp32(report, _list_of(loss.name)) for loss in bad))
    fp32 = any(site.slot.startswith("param_grad[") and site.dtype == "float32" for site in report.low.sites)
    if fp32:
        return held
    fine = [loss for loss in report.updates if loss.stepped and loss not in lost_updates(report)]
    if len(bad) <= min(_FEW, len(fine)):
        cast = module_cast(report)
        if cast is not None:
            names = ", ".join(dict.fromkeys(_list_of(loss.name) for loss in bad))
            return (
                f"# once {cast.location} has cast the whole module: {names} in torch.float32 again",
                *under_autocast(report),
            )
        again = "# and in torch.float32 again after .to(...), .half() or .bfloat16() of the whole model"
        return (*dict.fromkeys(held_in_fp32(report, _list_of(loss.name)) for loss in bad), again)
    return weights_in_fp32(report)


def _is_made(report: Report, name: str) -> bool:
    """Tell whether it is known which line makes a tensor itself, or the list that holds it."""
    maker = maker_of(report, name)
    return maker is not None and maker.name == _list_of(name.partition("[")[0]).rpartition(".")[2]


def _list_of(name: str) -> str:
    """Return what a list is called that holds a tensor, else the tensor's name."""
    owner, _, last = name.rpartition(".")
    return owner if owner and last.isdigit() else name


def lost_updates(report: Report) -> list[UpdateLoss]:
    """Return the tensors most of whose updates are lost or wrong, or make some elements infinite or NaN.

    What was loaded has lost what it has lost, however much that is.
    """
    return [
        loss
        for loss in report.updates
        if loss.infinite or loss.loaded or loss.stuck + loss.wrong > STUCK_SHARE * loss.moved
    ]


def _common(names: list[str]) -> str:
    parts = [name.split(".") for name in names]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)
