"""Reports of all audits of a session as files: `pytest --ampcheck-report DIR`."""

import re
from pathlib import Path

from ampcheck.renderers.saving import save
from ampcheck.values.report import Report

#: What is written of each audit.
ENDINGS = (".html", ".md", ".sarif")
#: Characters of a name that every file system takes.
_LONGEST = 120


def save_all(report: Report, folder: Path, name: str) -> None:
    """Write a report as a page, as Markdown and as SARIF; the files have the name of the audit."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "-", name).strip("-.")[-_LONGEST:]
    for ending in ENDINGS:
        save(report, folder / f"{stem}{ending}")
