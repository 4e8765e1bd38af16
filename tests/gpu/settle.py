"""Settles every claim about CUDA in one command of at most nine minutes: python tests/gpu/settle.py --out DIR.

The stages of `settling/plan.py` run in order of worth. Each has its own limit of time and leaves what it found in
DIR row by row, so that a run that is cut keeps it. README.md beside this file says how to run it and what to do
with the files.
"""

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATHS = [ROOT, HERE, *(ROOT / "tests" / name for name in ("helpers", "studies", "benchmarks", "zoo"))]
sys.path[:0] = [str(path) for path in PATHS if str(path) not in sys.path]

from settling.keep import Keep, read  # noqa: E402
from settling.plan import FILES, ROOM, STAGES, TOTAL, Stage  # noqa: E402
from settling.work import AGAIN  # noqa: E402

#: Workers in a row that may end before they begin a stage.
_FALSE_STARTS = 2
#: Seconds that a process may take to load torch: from a cold disk that can be long.
_LOADING = 100


class Settler:
    """Runs stages in processes of their own, and holds the clock."""

    def __init__(
        self, out: Path, *, device: str = "cuda", small: bool = False, seconds: float = TOTAL
    ) -> None:
        """Prepare; what is in `out` is gone on with. On the device `none` nothing loads torch."""
        self._out, self._device, self._small = out, device, small
        self._until = time.monotonic() + seconds
        self._left: dict[str, float] = {}
        self._tried: dict[str, list[str]] = {}
        self.modules: dict[str, str] = {}  #: other modules than the stage's own, by stage

    def run(self, stages: list[Stage]) -> None:
        """Run stages; what is over its limit is ended, and the next one begins."""
        waiting, false_starts = list(stages), 0
        self._left = {stage.name: float(stage.seconds) for stage in stages}
        while waiting and false_starts < _FALSE_STARTS and time.monotonic() < self._until:
            before = len(waiting), sum(map(len, self._tried.values()))
            waiting = self._work(waiting, list(_alike(waiting, one_for_all=self._small)))
            moved = before != (len(waiting), sum(map(len, self._tried.values())))
            false_starts = 0 if moved else false_starts + 1
        for stage in waiting:
            Keep(self._out, stage.name).end("not begun: no time was left, or no process started", 0.0)

    def _work(self, waiting: list[Stage], stages: list[Stage]) -> list[Stage]:
        """Run stages in one process, and return what is still to be run after it."""
        with tempfile.TemporaryDirectory() as folder:
            read, write = os.pipe()
            process = self._start(stages, write, folder)
            os.close(write)
            stage, row, begun = "", "", time.monotonic()
            clock = [self._deadline(_LOADING)]
            try:
                for words in _lines(read, clock):
                    if words[0] == "stage":
                        stage, row, begun = words[1], "", time.monotonic()
                        clock[0] = self._deadline(self._left[stage])
                        print(f"{stage}: at most {clock[0] - begun:.0f} s", flush=True)
                    elif words[0] == "row":
                        row = words[1]
                        self._tried.setdefault(stage, []).append(row)
                    else:
                        waiting = [other for other in waiting if other.name != words[1]]
                        print(f"{stage}: {self._ended(stage)}, {time.monotonic() - begun:.0f} s", flush=True)
                        stage, clock[0] = "", self._deadline(_LOADING)
            finally:
                os.close(read)
                late = time.monotonic() >= clock[0]
                status = _end(process)
                for half_written in self._out.glob("*.partial.json"):
                    half_written.unlink()
            if stage:
                waiting = self._interrupted(waiting, stage, row, time.monotonic() - begun, late, status)
        return waiting

    def _deadline(self, seconds: float) -> float:
        """Return when something that begins now has to be over."""
        return min(time.monotonic() + seconds, self._until)

    def _interrupted(
        self, waiting: list[Stage], stage: str, row: str, seconds: float, late: bool, status: int
    ) -> list[Stage]:
        """Keep what became of a stage that its process did not finish; return what is still to be run."""
        self._left[stage] -= seconds
        keep = Keep(self._out, stage)
        why = "cut: over its limit" if late else f"its process ended with {status}"
        if row and not keep.has(row) and status != AGAIN:
            keep.put(row, {"error": why})
        keep.end(why, seconds)
        print(f"{stage}: {why}", flush=True)
        again = not late and bool(row) and self._left[stage] > 0
        return waiting if again else [other for other in waiting if other.name != stage]

    def _start(self, stages: list[Stage], pipe: int, folder: str) -> subprocess.Popen[bytes]:
        options = {
            "stages": [(s.name, self.modules.get(s.name, f"settling.stages.{s.name}")) for s in stages],
            "out": str(self._out.resolve()),
            "tried": self._tried,
            "small": self._small,
            "device": self._device,
            "folder": folder,
            "pipe": pipe,
        }
        paths = [*map(str, PATHS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        for stage in stages:
            environment |= dict(stage.environment)
        command = [sys.executable, "-m", "settling.work", json.dumps(options)]
        return subprocess.Popen(command, env=environment, pass_fds=[pipe], start_new_session=True)

    def _ended(self, stage: str) -> str:
        keep = Keep(self._out, stage)
        errors = sum("error" in row for row in keep.part["rows"].values())
        return f"{keep.part['ended']}, {len(keep.part['rows'])} rows" + (
            f", {errors} errors" if errors else ""
        )


def _alike(stages: list[Stage], *, one_for_all: bool) -> Iterator[Stage]:
    """Yield the first stages that can share a process: they want the same environment."""
    for stage in stages:
        if not one_for_all and stage.environment != stages[0].environment:
            return
        yield stage


def _lines(read: int, clock: list[float]) -> Iterator[list[str]]:
    """Yield what the other process says until it ends or the deadline in `clock` is over; that moves meanwhile."""
    rest = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(read, selectors.EVENT_READ)
        while (left := clock[0] - time.monotonic()) > 0:
            if not waiting.select(left):
                continue
            got = os.read(read, 65536)
            if not got:
                return
            *whole, rest = (rest + got).split(b"\n")
            yield from map(json.loads, whole)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process with all it started, and return its status; one that is ending by itself gets a moment."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def build(seconds: float = 30.0) -> str:
    """Build the extension in place and say what came of it; without a compiler everything works, slower."""
    if list((ROOT / "ampcheck" / "observe").glob("_exphist*.so")):
        return "the extension is there"
    command = [sys.executable, "-c", "from setuptools import setup; setup()", "build_ext", "--inplace"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the extension was not built: {type(error).__name__}"
    if list((ROOT / "ampcheck" / "observe").glob("_exphist*.so")):
        return "the extension was built"
    return f"the extension was not built: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"


def has_cuda() -> bool:
    """Ask torch in another process: this one never loads it."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], timeout=_LOADING, check=False).returncode == 0


def fresh(out: Path, stages: list[Stage], *, resume: bool) -> list[Stage]:
    """Return the stages still to be run; without --resume what is there of them is forgotten."""
    if resume:
        return [stage for stage in stages if not Keep(out, stage.name).complete]
    for stage in stages:
        Keep(out, stage.name).forget()
    return stages


def summary(out: Path) -> str:
    """Return a line for each file: what is in it."""
    lines = []
    for stage in STAGES:
        if stage.name in read(out / stage.file)["stages"]:
            part = Keep(out, stage.name).part
            errors = sum("error" in row for row in part["rows"].values())
            lines.append(f"{stage.name:13} {part['seconds']:6.1f} s {len(part['rows']):4} rows"
                         f" {errors:3} errors  {part['ended']}")  # fmt: skip
    size = sum(path.stat().st_size for name in FILES if (path := out / name).exists())
    return "\n".join([*lines, f"{size / 2**20:.2f} MiB of {ROOM // 2**20} in {out.name}/"])


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; exit with 1 if a stage did not end, or a row is an error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the files: 8 at most, 16 MiB")
    parser.add_argument("--stage", choices=[stage.name for stage in STAGES], help="this stage alone")
    parser.add_argument("--self-test", action="store_true", help="a little of every stage, on a CPU")
    parser.add_argument("--resume", action="store_true", help="keep what is there and run the rest")
    asked = parser.parse_args(arguments)
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(build(), flush=True)
    if not asked.self_test and not has_cuda():
        print("no CUDA device: --self-test runs a little of every stage on a CPU", file=sys.stderr)
        return 2
    stages = [stage for stage in STAGES if asked.stage in {None, stage.name}]
    waiting = fresh(asked.out, stages, resume=asked.resume)
    left, device = TOTAL - (time.monotonic() - begun), "cpu" if asked.self_test else "cuda"
    Settler(asked.out, device=device, small=asked.self_test, seconds=left).run(waiting)
    print(summary(asked.out))
    return int(not all(Keep(asked.out, stage.name).complete for stage in stages))


if __name__ == "__main__":
    sys.exit(main())
