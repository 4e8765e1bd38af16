"""Which tests a plain `pytest` leaves out: the longest, until the others fit into a minute of two processes.

Run all with `pytest -m "not long" --junit-xml times.xml`, then `python tests/studies/suite_times.py times.xml` writes
tests/slow.txt. Run `pytest --junit-xml plain.xml`, and pass both: what is long now is left out too.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

TESTS = Path(__file__).parents[1]
LIST = TESTS / "slow.txt"
#: Seconds that the tests of a plain `pytest` may take together, shared between two processes; beside them each loads
#: torch and collects, which takes it twenty.
SECONDS = 90.0


def times(file):
    """Return how long each test function took, all its cases together, by "folder/file.py::name"."""
    taken = Counter()
    for case in ET.parse(file).getroot().iter("testcase"):
        path, name = case.get("classname").removeprefix("tests."), case.get("name").partition("[")[0]
        taken[f"{path.replace('.', '/')}.py::{name}"] += float(case.get("time"))
    return taken


def left_out(taken, seconds=SECONDS):
    """Return the longest tests, so many that the others take no longer than that together."""
    kept, names = 0.0, sorted(taken, key=taken.get)
    for at, name in enumerate(names):
        kept += taken[name]
        if kept > seconds:
            return names[at:]
    return []


def still_long(taken, seconds=1.0):
    """Return what takes long all the same: what a file's tests share is charged to whichever runs first."""
    files = {name.partition("::")[0] for name in taken if taken[name] > 10 * seconds}
    return [name for name in taken if taken[name] > seconds or name.partition("::")[0] in files]


if __name__ == "__main__":
    every, *plain = map(times, sys.argv[1:])
    found = {*left_out(every), *(name for taken in plain for name in still_long(taken))}
    LIST.write_text("\n".join(sorted(found)) + "\n", encoding="utf-8")
    print(f"{len(found)} tests are left out of a plain pytest")
