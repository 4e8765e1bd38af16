"""The report of a script that still runs, kept in a file: whatever ends the script, the last one written is there.

It is written by a thread of its own, soon after something was seen, and takes a small share of the time.
"""

import contextlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ampcheck.diagnose.verdict import judged
from ampcheck.errors import ReportError
from ampcheck.run import own_threads
from ampcheck.saved.report_json import to_json, write
from ampcheck.values.report import Report

#: Seconds between two writings, at least.
PAUSE = 1.0
#: A writing and the pause after it take so many times as long as the writing.
SHARE = 50
#: Seconds that the end of a script waits for a writing in progress.
PATIENCE = 10.0
#: What a script changes while its report is made may make that fail; then it is made again.
ATTEMPTS = 3


class Keeper:
    """Writes a report again and again while what it is about goes on."""

    def __init__(self, make: Callable[[], Report], place: Callable[[], Path]) -> None:
        """Begin with nothing written; `make` returns the report as it is now, `place` where it goes."""
        self._make, self._place = make, place
        self._stirred, self._over = threading.Event(), threading.Event()
        self._writing = threading.Lock()
        self._begun = self._signalled = False

    def stir(self) -> None:
        """Take note that something new was seen: it will be written, and not by the caller."""
        if self._over.is_set():
            return
        self._stirred.set()
        if not self._begun:
            self._begun = True
            own_threads.start(self._keep)

    def close(self) -> None:
        """Write no more."""
        self._over.set()
        self._stirred.set()
        if self._writing.acquire(timeout=PATIENCE):
            self._writing.release()

    def write(self) -> None:
        """Write the report as it is now; where that fails, say so once."""
        if not self._writing.acquire(timeout=PATIENCE):
            return
        try:
            write(self._place(), to_json(self._made()))
        except ReportError as error:
            self._tell(error.message)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the script
            self._tell(f"{type(error).__name__}: {error}")
        finally:
            self._writing.release()

    def _made(self) -> Report:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(RuntimeError):
                return self._make()
        return self._make()

    def _tell(self, problem: str) -> None:
        if not self._signalled:
            self._signalled = True
            print(f"ampcheck: cannot save the report while the script runs: {problem}", file=sys.stderr)  # noqa: T201

    def _keep(self) -> None:
        while True:
            self._stirred.wait()
            if self._over.is_set():
                return
            self._stirred.clear()
            began = time.thread_time()
            self.write()
            if self._over.wait(max(PAUSE, (SHARE - 1) * (time.thread_time() - began))):
                return


class Corner:
    """A folder of this process alone, for a report that nobody has named a file for."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def file(self, name: str) -> Path:
        """Return a file in it; it is made when this is first asked."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ampcheck-"))
        return self._folder / name

    def keep(self) -> None:
        """Leave it there, for whoever looks for what is in it."""
        self._folder = None

    def clear(self) -> None:
        """Take it away with what is in it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None


def unfinished(report: Report, steps: int) -> Report:
    """Return a report that says that the script had not ended, and which step was the last one seen."""
    seen = f"the last recorded step is {steps - 1}" if steps else "no step was seen"
    gap = f"incomplete: the script had not ended when this was written; {seen}"
    coverage = replace(report.verdict.coverage, gaps=(gap, *report.verdict.coverage.gaps))
    return judged(replace(report, notes=(gap, *report.notes)), coverage)
