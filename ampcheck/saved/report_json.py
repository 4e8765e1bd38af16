"""Saved reports: JSON that other tools can read and that gives back the very report.

One object; its JSON Schema is `report.schema.json` beside this file, and here is what the fields mean. "schema"
grows when a reader of an older one would go wrong. Fields that hold their default (0, "", [], false) are left
out of the flat objects marked *. Numbers JSON cannot write are the strings "inf", "-inf" and "nan".

    schema          1
    tool            {"name": "ampcheck", "version"}
    target          what was audited, as it was typed
    precision       "fp16" or "bf16"
    scale           loss scale of the low-precision run, 2**log2_scale
    log2_scale      its exponent
    stand_in_loss   true: the loss is ampcheck's, gradient magnitudes are not the user's
    scaling_open    true: the loss is the user's, and nothing says which loss scale goes with it
    refused_scales  log2 of larger loss scales tried before, which overflowed
    verdict         {word: safe|"partly audited"|risk|unsafe|unknown, sentence, reasons: [codes of the findings behind
                    it], coverage: {parameters, elements, unseen: {name: elements}, idle, operations, casts,
                    backwards, judged, completed, skipped, raised, asked, asked_by, stood_in, gaps}}; unsafe
                    if and only if one of the findings is an error
    findings        [{code, name, severity: error|warning|info, kind, module, op, dtype, location, message,
                    numbers: {name: number}, sites: [site*], ranks: [names] if merged,
                    follows: [what goes away with the same cause], fix: [lines of code]}], most important
                    first; module, op, dtype and location {file, line} are those of the first site; null
                    where there is none
    suppressed      findings that do not count: the fields above and {how, entry, reason}
    ranks           [{name, steps, reference_steps, and where there were loss scales first_scales, scales as in
                    loop}]: the parts of a merged report, in the order of its steps
    plan            {precision, fp32_modules, fp32_lines: ["file:line"], grad_scaler: {init_scale, growth_factor,
                    backoff_factor, growth_interval} or null, and of an FP8 recipe {recipe, bf16_modules,
                    bf16_gemms}}; null where nothing was tried
    claims        [{claim, tried: confirmed|refuted|"not tried", before, after}]
    outcomes        {settled, unscaled, planned, rest, rescaled, rounded, rounded_other, fp16 or bf16: re-runs at
                    the scale in use, without one, with the plan's places in FP32, with all but those, at the
                    plan's scale where that alone heals, in FP32 with weights rounded to this precision and to the
                    other one, in the other precision, each {log2_scale, raised, loss, loss_error, loss_nonfinite,
                    grads_nonfinite, grad_error, underflow, underflow_by, and where there are any off: [parameters
                    whose own gradient is off by more than 15 %], parts: {module whose gradient is harmed: its
                    error}, state: {tensor left behind that is far off: its error}, next_error: of the step after}}
    patch           the plan as a unified diff against the user's file, or as lines to paste
    advice          [sentences: what to expect of the plan]
    recipes         what FP8 and FP4 recipes did, only there with --precision fp8: {asked, results: [{outcome,
                    alone, plan, planned, fresh, trained, ends_as_bf16, operands, misfits}], loss, undetermined,
                    judged, layers, missed, left, noise, steps}, as values/recipe_audit.py names them
    in_use          [{module, library, recipe, note, runs}]: layers that a script trains in FP8 already
    bought          {batch_size, reference_peak, peak, gpu, faster}: what a step is predicted to need on a GPU
    error_jumps           [{site, error_before, error, dropped: site}]: where errors begin in the forward
    placed          site: where the bits are lost; there only where its line in FP32 was tried and heals
    updates         [{name, moved, stuck, wrong, file, line}]: tensors held in half precision after optimizer steps
    doubts          [{kind: given|picked|changed, names, file, line, error, part, harms, overflows}]: what the
                    reference took from a script, and what that may hide; absent without
    makers          [{name, file, line, changed: ["file:line"], cast: ["file:line"]}]: lines that make what a script
                    holds in half precision, those that write into it and
                    that cast it again, and those that cast a module, and
                    make and lower a loss scale of its own; absent without
    not_audited     {what was not seen: how often in one run}
    notes           [what was assumed]
    environment     {name: text}
    loop            what a script's training loop did; null where there was none
        rounds      [[{kind, thing, name, targets, by, autocast, grad, training, dtype, scaled, file, line}*]],
                    each different one once
        order       [[which round, times in a row]]
        things      [{label, kind, settings: {name: value}, file, line}]: models, optimizers, scalers, schedulers
        scales      [{step, scaler, before, after, skipped, cause: {parameter, layer, optimizer, op, file, line,
                    others, place, given} or null}]: changes of the loss scale, and skipped steps
        first_scales, steps, recorded: numbers of recorded steps, children: processes not looked into,
                    scaling: why the loss scale is not known, where it is not
                    untrained: parameters whose gradients come in skipped steps only, where there are any
    reference, low  the FP32 and the low-precision run, each
        sites       [site* + stats*] in order of execution
        casts       [{module, source, target, phase, file, line, calls, elements, bytes, round_trips}*]
        steps       [{loss, log2_scale, grad_amax, nonfinite}]
        modules     [{path, kind, calls, aliases, parameters, dtypes}*] in order of first execution
        not_audited, operations, measured
        failure     {kind, message, module, op, file, line}*: what the user's code raised; null if it did not
        constants   [site* + {value}]: numbers of the user's code that were rounded to half precision
        elements    [site* + {elements}]: of a dry run only, which has no sites
        integers    [{file, line, numbers, others}*]: numbers that become other integers than in FP32; absent without
        caught      [like failure]: what the script caught, which left a module without gradients; absent without
    errors          [site* + {sampled, live, lost, error_squares, error_sum, reference_squares, cross,
                    nonfinite}*]: sums over sampled pairs, by site of the low-precision run

    site            {module, op, slot, phase: forward|backward|recompute|state, dtype, file, line}
    stats           {lowest: floor(log2) of the first count, counts: elements per power of two, zeros, infs,
                    nans, amax: largest finite magnitude, sum_squares: of the finite elements}
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ampcheck.errors import ReportError
from ampcheck.gc_pause import no_collections
from ampcheck.saved.json_lines import lines
from ampcheck.saved.replacing import UNWRITABLE, put_in_place
from ampcheck.values.codec import definitions, from_plain, to_plain
from ampcheck.values.codec_plain import Json
from ampcheck.values.report import Report

Item = TypeVar("Item")
SCHEMA = 1
TOOL = "ampcheck"
#: What a person who opens the file wants to read first, and what is long.
_FIRST = (
    "target",
    "precision",
    "scale",
    "log2_scale",
    "verdict",
    "findings",
    "suppressed",
    "ranks",
    "plan",
    "claims",
)
_LAST = ("loop", "reference", "low", "errors")


def to_json(report: Report) -> str:
    """Return the report as JSON: one line for each site, so that two reports can be compared by line."""
    fields = to_plain(report)
    rest = [name for name in fields if name not in {*_FIRST, *_LAST}]
    header = {"schema": SCHEMA, "tool": {"name": TOOL, "version": tool_version()}}
    return lines(header | {name: fields[name] for name in [*_FIRST, *rest, *_LAST]})


#: What a report can be of.
_PRECISIONS = ("fp16", "bf16", "fp32")


def from_json(text: str | bytes) -> Report:
    """Return the report that `to_json` wrote."""
    with no_collections():
        saved = _checked(text)
        try:
            return _possible(from_plain(Report, saved))
        except (ValueError, TypeError, OverflowError) as error:
            raise ReportError(
                f"expected a report of schema {SCHEMA}, got a damaged one: {error}; run the audit again"
            ) from error


def _possible(report: Report) -> Report:
    """Return a report whose precision is a word that what reads it knows, and whose squares are none below 0."""
    if report.precision not in _PRECISIONS:
        raise ValueError(f"precision is not one of {', '.join(_PRECISIONS)}")
    if any(pair.error_squares < 0 or pair.reference_squares < 0 for pair in report.errors.values()):
        raise ValueError("a sum of squares is below 0")
    if any(
        stats.sum_squares < 0 for trace in (report.low, report.reference) for stats in trace.sites.values()
    ):
        raise ValueError("a sum of squares is below 0")
    return report


def schema() -> str:
    """Return the JSON Schema of saved reports."""
    classes = definitions(Report)
    whole = classes.pop(Report.__name__)
    tool = {"type": "object", "properties": {"name": {"const": TOOL}, "version": {"type": "string"}}}
    whole["properties"] = {"schema": {"const": SCHEMA}, "tool": tool, **whole["properties"]}
    whole["required"] = ["schema", "tool", *whole["required"]]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A report of ampcheck"}
    return json.dumps({**head, **whole, "$defs": classes}, indent=1) + "\n"


def write(path: str | Path, text: str) -> None:
    """Write a file by replacing it in one move; what was there before stays if anything goes wrong."""
    target = Path(os.path.realpath(path))  # replacing a symbolic link would leave its target stale
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            # A pipe or /dev/stdout must not be replaced.
            target.write_text(text, encoding="utf-8", errors=UNWRITABLE)
        else:
            put_in_place(target, text)
    except OSError as error:
        raise ReportError(f"cannot write {str(path)!r}: {error.strerror}; pass another path") from error


def read(path: str | Path) -> Report:
    """Load a saved report."""
    return loaded(path, from_json, "a saved report", "pass a file that ampcheck saved as JSON")


def loaded(path: str | Path, parse: Callable[[bytes], Item], what: str, advice: str) -> Item:
    """Return what a file holds; an error says what was expected in it, or what to do where it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ReportError(
            f"expected {what}, could not read {str(path)!r}: {error.strerror}; {advice}"
        ) from error
    try:
        return parse(data)
    except ReportError as error:
        raise ReportError(error.message, where=str(path)) from error.__cause__


def tool_version() -> str:
    """Return the version of this package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(TOOL)
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def _checked(text: str | bytes) -> Json:
    """Return the parsed object, once it is known to be a report that this version can read."""
    try:
        saved = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"expected a report saved by ampcheck, got something that is not JSON ({error}); "
            "save one with --format json -o FILE"
        ) from error
    tool = saved.get("tool") if isinstance(saved, dict) else None
    if not isinstance(tool, dict) or tool.get("name") != TOOL:
        raise ReportError(
            f"expected a report saved by ampcheck, got JSON whose tool is {tool!r}; "
            "save one with --format json -o FILE"
        )
    schema = saved.get("schema")
    if schema != SCHEMA:
        version = str(tool.get("version"))
        raise ReportError(
            f"expected a report of schema {SCHEMA}, got {schema!r} written by ampcheck {version}; "
            "read it with that version or a newer one"
        )
    if "verdict" not in saved:
        raise ReportError("expected a report with a verdict, got one without a verdict; run the audit again")
    return dict(saved)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
