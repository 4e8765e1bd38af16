"""What ampcheck says of one case of the zoo on a device, in a few words that can be compared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from running import CASES, load

from ampcheck.errors import AmpcheckError
from ampcheck.run.audit import audit
from ampcheck.targets import Options
from ampcheck.targets import load as load_target
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings
from settling.keep import Row

_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}


def paths() -> list[Path]:
    """Return the cases, mixed, so that a part of them is of every kind."""
    return sorted(CASES.glob("*.py"), key=lambda path: path.stem[::-1])


def judged(name: str, device: str) -> Row:
    """Return the verdict on a case: the word, the kinds and places of errors, the modules and scale of the plan."""
    torch.set_num_threads(1)
    path = CASES / f"{name}.py"
    settings = Settings(precision=_PRECISIONS[load(path).TRUTH["dtype"]], budget=10.0)
    try:
        report = audit(there(load_target(str(path), Options(device=device)), device), settings)
    except (AmpcheckError, RuntimeError) as error:
        return {"raised": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    errors = [finding for finding in report.findings if finding.severity == "error"]
    first = errors[0].origin if errors else None
    plan = report.plan
    return {
        "word": str(report.verdict.word),
        "errors": sorted({finding.kind for finding in errors}),
        "first": [first.module, first.op] if first else [],
        "fp32": list(plan.fp32_modules) if plan else [],
        "scale": plan.scaler.init_scale if plan and plan.scaler else None,
    }


def there(target: Target, device: str) -> Target:
    """Return a target whose loss makes new tensors on the device: many cases were written for a CPU alone."""

    def loss(model: Any, batch: Any) -> torch.Tensor:
        with torch.device(device):
            return target.loss(model, batch)

    return target if device == "cpu" else replace(target, loss=loss)


def both(name: str, device: str) -> Row:
    """Return the verdicts on a device and on the CPU, and what of them is not the same."""
    away, here = judged(name, device), judged(name, "cpu")
    return {"there": away, "cpu": here, "differs": differs(away, here)}


def differs(there: Row, here: Row) -> list[str]:
    """Return what of two verdicts is not the same."""
    return sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))
