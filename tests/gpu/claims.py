"""Writes what is said of GPUs from tests/golden alone: python tests/gpu/claims.py.

Between `<!-- gpu -->` and `<!-- /gpu -->` in the README and in the manual's page of measurements, and all of
reports/gpu.md and ampcheck/bench/confirmed.json. A test holds them to the files, so that no figure of a GPU is ever
written by hand.
"""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE)]

from settling.golden import Golden, figures, known, unfinished  # noqa: E402
from settling.plan import STAGES, table  # noqa: E402

_BLOCK = re.compile(r"(<!-- gpu -->\n).*?(<!-- /gpu -->)", re.DOTALL)
_NOTHING = "**Not measured:** nothing here has run on a GPU. The code for one is there and its tests are marked `gpu`."
#: The stages whose first figure stands in the README.
_SHOWN = ("traces", "zoo", "transparency", "kernel", "bench", "fp8")


def machine(golden: Golden) -> str:
    """Return the machines in words."""
    seen = [golden.machine(stage.name) for stage in STAGES if golden.ended(stage.name)]
    words = [f"{one['device']} (torch {one['torch']}, {one['day']})" for one in seen]
    return ", ".join(dict.fromkeys(words))


def readme(golden: Golden) -> str:
    """Return the README's line: one, as the README is to stay short."""
    if not golden:
        return f"{_NOTHING} [What one would settle](reports/gpu.md).\n"
    rows = [figures(golden, stage)[0] for stage in _SHOWN if figures(golden, stage)]
    said = " · ".join(f"{row.claim}: {row.figure}" for row in rows)
    first = f"**Measured on {machine(golden)}** ([all figures](reports/gpu.md)): {said}."
    return " ".join([first, *_missing(golden)]) + "\n"


def manual(golden: Golden) -> str:
    """Return the lines of the manual's page."""
    if not golden:
        return (
            f"{_NOTHING}\nAmong it are the same recorder under real CUDA autocast and a Triton kernel for the "
            "statistics, tested in Triton's\ninterpreter and compiled for sm_90. `python tests/gpu/settle.py` "
            "measures all of it in nine minutes:\n[what it will](../../reports/gpu.md).\n"
        )
    return "\n".join([f"**Measured on {machine(golden)}:**\n", *_table(golden), "", *_missing(golden)]) + "\n"


def report(golden: Golden) -> str:
    """Return reports/gpu.md."""
    made = "Made by `python tests/gpu/claims.py` from the files in tests/golden, and from nothing else."
    lines = ["# On a GPU", "", made, ""]
    if golden:
        lines += [f"Measured on {machine(golden)}.", "", *_table(golden), "", *_missing(golden), ""]
        lines += _differences(golden)
    else:
        lines += [_NOTHING, ""]
    lines += ["## What `python tests/gpu/settle.py --out DIR` settles", "", table()]
    return "\n".join(lines)


def _table(golden: Golden) -> list[str]:
    rows = [
        f"| {stage.name} | {row.claim} | {row.figure} |"
        for stage in STAGES
        for row in figures(golden, stage.name)
    ]
    return ["| stage | claim | measured |", "|---|---|---|", *rows]


def _missing(golden: Golden) -> list[str]:
    missing = unfinished(golden)
    return [f"**Not measured, or not whole:** {'; '.join(missing)}."] if missing else []


def _differences(golden: Golden) -> list[str]:
    """Return every difference found between emulation and silicon, with its size."""
    why = {key: f". {reason}" for rows in known().values() for key, reason in rows.items()}
    found = [f"- {key}: {'; '.join(row['differences'][:3])}{why.get(key, '')}"
             for key, row in golden.rows("traces").items() if row["differences"]]  # fmt: skip
    found += [f"- {key.replace(' | ', ', ')}: up to {row['apart']['max']:g} roundings, "
              f"99 % within {row['apart']['p99']:g}"
              for key, row in golden.rows("silicon").items()
              if "float32" not in key and row["apart"]["max"] > 1]  # fmt: skip
    found += [f"- {key}: on CUDA {_said(row['there'])}, on the CPU {_said(row['cpu'])}{why.get(key, '')}"
              for key, row in golden.rows("zoo").items() if row["differs"]]  # fmt: skip
    return ["## Every difference found", "", *(found or ["None."]), ""]


def _said(verdict: dict[str, object]) -> str:
    return str(
        verdict.get("raised") or ", ".join(str(verdict[key]) for key in ("word", "errors", "fp32", "scale"))
    )


def confirmed(golden: Golden) -> str:
    """Return ampcheck/bench/confirmed.json: what the bench says of its own predictions."""
    found = {
        row.claim.split()[1]: row.figure
        for row in figures(golden, "bench")
        if row.claim.startswith("predicted ")
    }
    if found:
        found["machine"] = str(golden.machine("bench")["device"])
    return json.dumps(found, indent=1) + "\n"


def pages(golden: Golden) -> dict[Path, str]:
    """Return what every page has to be."""
    found = {}
    for path, text in ((ROOT / "README.md", readme(golden)),
                       (ROOT / "ampcheck" / "manual" / "measurements.md", manual(golden))):  # fmt: skip
        old = path.read_text(encoding="utf-8")
        found[path] = _BLOCK.sub(lambda match, text=text: match[1] + text + match[2], old)
    found[ROOT / "reports" / "gpu.md"] = report(golden)
    found[ROOT / "ampcheck" / "bench" / "confirmed.json"] = confirmed(golden)
    return found


def main() -> None:
    """Write the pages."""
    for path, text in pages(Golden()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
