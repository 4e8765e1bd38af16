"""A script of a framework's, by itself and under `ampcheck run`: what it prints, and what is reported of it."""

import os
import subprocess
from dataclasses import dataclass

import forked

from ampcheck.saved.report_json import read
from ampcheck.values.report import Report

#: Ends a script: the parameters of what it has trained, as one number.
DIGEST = """
import hashlib
print("DIGEST", hashlib.sha1(b"".join(held.detach().float().numpy().tobytes() for held in trained)).hexdigest())
"""


@dataclass
class Ran:
    """What came of a script."""

    printed: str
    errors: str
    report: Report | None = None

    def numbers(self, word: str) -> list[float]:
        """Return the numbers that were printed behind a word, a line each."""
        lines = (line.split() for line in self.printed.splitlines())
        return [float(words[1]) for words in lines if words[:1] == [word]]


def alone(script, *words, **environment):
    """Run a script by itself."""
    return ran_in([script.name], words, script.parent, environment)


def watched(script, *words, options=(), **environment):
    """Run a script under `ampcheck run`."""
    place = script.parent / f"report-of-{'-'.join(words) or 'none'}.json"
    run = ["-m", "ampcheck", "run", *options, "-o", str(place), script.name]
    ran = ran_in(run, words, script.parent, environment)
    ran.report = read(place)
    return ran


def ran_in(command, words, folder, environment):
    """Return what a process printed that ended well."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [*forked.python(), *command, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false", **environment},
    )
    assert done.returncode == 0, done.stderr
    return Ran(done.stdout, done.stderr)
