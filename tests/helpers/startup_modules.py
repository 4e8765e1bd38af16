"""Which modules a statement loads, in a process of its own."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
status = 0
try:
    {statement}
except SystemExit as done:
    status = done.code or 0
print("\\n" + json.dumps([status, sorted({{name.partition(".")[0] for name in sys.modules}})]))
"""


def loaded_by(statement: str) -> tuple[int, set[str], str]:
    """Return a statement's exit status in a new process, the modules it loaded, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
    )
    printed, _, last = done.stdout.rstrip("\n").rpartition("\n")
    status, names = json.loads(last)
    return status, set(names), printed
