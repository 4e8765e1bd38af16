"""The saved reports: audits of real, small models, made by `python tests/saved/make.py`."""

from functools import cache
from pathlib import Path

from ampcheck.codec import read
from ampcheck.report import Report

FOLDER = Path(__file__).parent / "saved"
SAVED = sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def saved(name: str) -> Report:
    """Return a saved report."""
    return read(FOLDER / f"{name}.json")
