"""How `ampcheck FILE` fares with ordinary files: `python tests/people/score.py [KIND/NAME ...]` prints a row for each.

A file is copied, with those beside it, into a folder of its own, and `ampcheck FILE` is typed there. Where it asks for
one more command, the first that it prints is typed as well, and no more. Judged by `expected.toml`: whether a verdict
is reached, whether the right class is named, whether what was planted is found, and whether anything else is called an
error. The files were written before anybody looked at how ampcheck finds a model.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
AMPCHECK = (sys.executable, "-m", "ampcheck")
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Case:
    """An ordinary file, and what must come of it."""

    kind: str
    name: str
    road: str
    classes: tuple[str, ...]
    bugs: tuple[str, ...] = ()
    fp32: bool = False
    follows: tuple[str, ...] = ()
    file: str = ""  #: where it is no file of its kind's folder: what is typed in a folder of its own
    folder: str = ""

    @property
    def place(self) -> Path:
        """The folder that is copied, and where the command is typed."""
        kind = HERE / "files" / self.kind
        return kind / (self.folder or self.name) if self.file else kind

    @property
    def path(self) -> Path:
        return self.place / (self.file or f"{self.name}.py")


@dataclass(slots=True)
class Row:
    """What came of a file."""

    case: Case
    commands: int = 1
    health: str = ""
    named: str = ""
    errors: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  #: files that lie in the folder afterwards
    seconds: float = 0.0
    output: str = field(default="", repr=False)

    @property
    def reached(self) -> bool:
        return bool(self.health) and (self.health != "unknown" or self.case.fp32)

    @property
    def right(self) -> bool:
        return bool(self.named) and set(self.named.split(", ")) <= set(self.case.classes)

    @property
    def bugs(self) -> bool:
        return set(self.case.bugs) <= set(self.found)

    @property
    def quiet(self) -> bool:
        return set(self.errors) <= {*self.case.bugs, *self.case.follows}

    @property
    def good(self) -> bool:
        return self.reached and self.right and self.bugs and self.quiet and not self.left


def cases() -> Iterator[Case]:
    told = tomllib.loads((HERE / "expected.toml").read_text())
    for kind, files in told.items():
        for name, said in files.items():
            yield Case(
                kind,
                name,
                said["road"],
                tuple(said["class"]),
                tuple(said.get("bugs", ())),
                said.get("fp32", False),
                tuple(said.get("follows", ())),
                said.get("file", ""),
                said.get("folder", ""),
            )


def typed(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a command in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    try:
        return subprocess.run(
            [*AMPCHECK, *words],
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        text = error.stderr.decode() if isinstance(error.stderr, bytes) else ""
        return subprocess.CompletedProcess(words, 124, "", f"{text}\nno answer in {SECONDS} s")


def run(case: Case) -> Row:
    """Audit a file as a person would, and judge what came of it."""
    row, begun = Row(case), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ampcheck-people-") as place:
        folder, report = Path(place, case.kind), Path(place, "report.json")
        shutil.copytree(case.place, folder, ignore=shutil.ignore_patterns("__pycache__"))
        before = set(folder.rglob("*"))
        words = [str(case.path.relative_to(case.place))]
        done = typed([*words, "-o", str(report), "-o", "-"], folder)
        more = next(iter(re.findall(r"^  ampcheck (.+?)$", done.stderr, re.MULTILINE)), None)
        row.output = f"$ ampcheck {shlex.join(words)}\n{done.stdout}{done.stderr}"
        if not report.exists() and more is not None:
            row.commands = 2
            words = shlex.split(more)
            done = typed([*words, "-o", str(report), "-o", "-"], folder)
            row.output += f"$ ampcheck {shlex.join(words)}\n{done.stdout}{done.stderr}"
        if report.exists():
            _judge(row, json.loads(report.read_text()), done.stdout)
        row.left = tuple(
            str(path.relative_to(folder))
            for path in sorted(set(folder.rglob("*")) - before)
            if "__pycache__" not in str(path)
        )
    row.seconds = time.monotonic() - begun
    return row


def _judge(row: Row, report: dict, screen: str) -> None:
    row.health = next(
        iter(re.findall(r"^ ?(SAFE|PARTLY AUDITED|RISK|UNSAFE|UNKNOWN)\b", screen, re.MULTILINE)), ""
    ).lower()
    row.found = tuple(sorted({one["code"] for one in report["findings"]}))
    row.errors = tuple(sorted({one["code"] for one in report["findings"] if one["severity"] == "error"}))
    row.named = (
        screen.strip().splitlines()[0].split(" · ")[1]
    )  # the first line: ampcheck FILE · CLASS · fp16 …


HEADER = f"{'file':32} {'verdict':8} {'typed':>5} {'class':34} {'found':24} {'wrong errors':14} {'s':>4}"


def line(row: Row) -> str:
    """Return a row of the table."""
    bugs = " ".join(f"{code}{'' if code in row.found else '?'}" for code in row.case.bugs) or "–"
    wrong = " ".join(sorted(set(row.errors) - {*row.case.bugs, *row.case.follows})) or "–"
    marks = "" if row.good else "  <-"
    left = f" left: {', '.join(row.left[:3])}" if row.left else ""
    file = f"{row.case.kind}/{row.case.name}"
    return (
        f"{file:32} {row.health or 'none':8} {row.commands:>5} {row.named or '?':34} {bugs:24} {wrong:14} "
        f"{row.seconds:4.0f}{marks}{left}"
    )


def totals(rows: Sequence[Row]) -> str:
    """Return the last line."""
    planted = [code for row in rows for code in row.case.bugs]
    found = [code for row in rows for code in row.case.bugs if code in row.found]
    return (
        f"{sum(row.reached for row in rows)} of {len(rows)} reach a verdict, "
        f"{sum(row.right for row in rows)} name the right class, {len(found)} of {len(planted)} planted bugs found, "
        f"{sum(bool(row.named) and not row.right for row in rows)} audit a wrong model, "
        f"{sum(not row.quiet for row in rows)} with an error that is none, "
        f"{sum(bool(row.left) for row in rows)} leave files"
    )


def main(wanted: Sequence[str]) -> None:
    rows = []
    print(HEADER, flush=True)
    for case in cases():
        if wanted and not any(f"{case.kind}/{case.name}".startswith(word) for word in wanted):
            continue
        rows.append(run(case))
        print(line(rows[-1]), flush=True)
        if "AMPCHECK_PEOPLE_OUTPUT" in os.environ:
            Path(os.environ["AMPCHECK_PEOPLE_OUTPUT"], f"{case.kind}_{case.name}.txt").write_text(
                rows[-1].output
            )
    print(totals(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
