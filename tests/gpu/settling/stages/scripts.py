"""Stage g: real scripts, bare and under `ampcheck run`: the same output, and the scaler's history as they print it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from settling.keep import Row
from settling.plan import Scope
from settling.work import Job

SCRIPTS = Path(__file__).parents[2] / "scripts"
_SMALL = ("regression.py",)
#: Of a script: so long it may take.
_SECONDS = 40
_SCALE = re.compile(r"^step \d+ .* scale ([\d.e+-]+)$", re.MULTILINE)


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield a row for each script."""
    for path in sorted(SCRIPTS.glob("*.py")):
        if not scope.small or path.name in _SMALL:
            yield Job(path.stem, partial(compared, path, scope))


def compared(path: Path, scope: Scope) -> Row:
    """Run a script bare and watched, and compare."""
    saved = scope.folder / f"{path.stem}.json"
    bare, bare_seconds = _run([str(path)], scope.device)
    run = ["-m", "ampcheck", "run", "--no-live", "-o", str(saved), str(path)]
    watched, seconds = _run(run, scope.device)
    if not saved.exists():
        raise RuntimeError(f"no report: {watched.stderr.strip().splitlines()[-1:]}")
    report = json.loads(saved.read_text(encoding="utf-8"))
    recorded = [event["after"] for event in report["loop"]["scales"] if event["after"] != event["before"]]
    first = next(iter(report["loop"]["first_scales"].values()))
    return {
        "same output": _printed(bare) == _printed(watched) != [],
        "same scales": _scales(bare.stdout, first) == recorded,
        "exit": [bare.returncode, watched.returncode],
        "seconds": [round(bare_seconds, 1), round(seconds, 1)],
        "scales": _scales(bare.stdout, first),
        "verdict": report["verdict"]["word"] if isinstance(report.get("verdict"), dict) else "",
        "findings": sorted({finding["code"] for finding in report["findings"]}),
        "device": report["environment"].get("device", ""),
    }


def _run(arguments: list[str], device: str) -> tuple[subprocess.CompletedProcess[str], float]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return done, time.monotonic() - begun


def _printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the script's own lines; the report's follow them."""
    return [line for line in done.stdout.splitlines() if line.startswith("step ")]


def _scales(text: str, first: float) -> list[float]:
    """Return the loss scale each time it became another one."""
    scales = [float(scale) for scale in _SCALE.findall(text)]
    return [scale for before, scale in zip([first, *scales], scales, strict=False) if scale != before]
