"""Baselines as JSON, a line for each layer and finding, so that a review shows what changed.

ampcheck_baseline  1; grows when a reader of an older one would go wrong
audits             {"TARGET PRECISION": {log2_scale, tried, plan, findings, layers}}
  plan             {precision, fp32_modules, fp32_files, log2_init_scale, and where there are some bf16_modules, way};
                   null where there is none
  findings         [{code, name, module, op, severity, count, reason}]
  layers           {module: {dtypes, forward, backward: [low, typical, top] as powers of two or null}}
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ampcheck.compare.baseline import Baseline
from ampcheck.errors import ReportError
from ampcheck.saved.report_json import loaded
from ampcheck.values.codec import from_plain, to_plain
from ampcheck.values.codec_plain import Json

SCHEMA = 1
_KIND = "ampcheck_baseline"


def to_json(baselines: Mapping[str, Baseline]) -> str:
    """Return the baselines of some audits as JSON."""
    audits = ",\n".join(f"  {_one(name)}: {_audit(baselines[name])}" for name in sorted(baselines))
    return f'{{\n "{_KIND}": {SCHEMA},\n "audits": {{\n{audits}\n }}\n}}\n'


def from_json(text: str | bytes) -> dict[str, Baseline]:
    """Return the baselines that `to_json` wrote."""
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"expected a baseline, got something that is not JSON ({error}); restore the file"
        ) from error
    schema = saved.get(_KIND) if isinstance(saved, dict) else None
    if schema != SCHEMA:
        raise ReportError(
            f"expected a baseline of schema {SCHEMA}, got {schema!r}; read it with the ampcheck that wrote it, "
            "or remove the file and make a new one"
        )
    try:
        return {name: _read_audit(item) for name, item in saved["audits"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(
            f"expected a baseline of schema {SCHEMA}, got a damaged one ({type(error).__name__}: {error}); "
            "restore the file, or remove it and make a new one"
        ) from error


def read(path: str | Path) -> dict[str, Baseline]:
    """Load a file of baselines."""
    return loaded(path, from_json, "a baseline", "make one with ampcheck baseline")


def _audit(baseline: Baseline) -> str:
    """Return an audit with a line for each of its findings and layers."""
    plain = to_plain(baseline)
    findings = [_one(finding) for finding in plain["findings"]]
    layers = [f"{_one(module)}: {_one(layer)}" for module, layer in plain["layers"].items()]
    parts = [f'"{name}": {_one(plain[name])}' for name in ("log2_scale", "tried", "plan")]
    parts += [f'"findings": [{_listed(findings)}]', f'"layers": {{{_listed(layers)}}}']
    return "{\n   " + ",\n   ".join(parts) + "\n  }"


def _listed(lines: list[str]) -> str:
    return "".join(f"\n    {line}{',' * (number < len(lines))}" for number, line in enumerate(lines, 1)) + (
        "\n   " if lines else ""
    )


_one = json.JSONEncoder(allow_nan=False).encode


def _read_audit(item: Json) -> Baseline:
    baseline = from_plain(Baseline, item)
    if any(accepted.count < 1 for accepted in baseline.findings):
        raise ValueError("a finding is accepted less than once")
    return baseline
