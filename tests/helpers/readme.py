"""The README and the manual, as tests read them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "ampcheck" / "manual"
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOOPS = (MANUAL / "loops.md").read_text(encoding="utf-8")


def block(after: str, text: str = README) -> str:
    """Return the first fenced block after some words."""
    found = re.search(r"```\w*\n(.*?)```", text[text.index(after) :], re.DOTALL)
    assert found
    return found[1]


def shape(text: str) -> list[str]:
    """Return words with every number made the same: the last digits, and times, differ between machines."""
    joined = " ".join(line.strip() for line in text.splitlines())
    joined = re.sub(r"· (a step takes|no difference measured) [^·(]*\(", "· TIMES (", joined)
    joined = joined.replace("(measured here, ", "(")
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", joined).split()
