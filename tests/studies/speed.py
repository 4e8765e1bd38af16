"""How long from the shell to a verdict.

    python tests/studies/speed.py

A clean resnet18 at its usual 224 pixels, and a broken decoder of twelve layers up to its verified plan; the targets
hold on two idle cores.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """What is typed, and how many seconds it may take."""

    spec: str
    target: float
    status: int  #: of the exit
    confirmed: bool  #: the plan must have been tried


TASKS = (
    Task("torchvision:resnet18", 20.0, 0, confirmed=False),
    Task(str(Path(__file__).parent / "speed_model.py"), 60.0, 1, confirmed=True),
)


def timed(task: Task) -> tuple[float, str]:
    """Return the seconds of a run, and what was wrong with it, '' if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "report.json"
        command = [sys.executable, "-m", "ampcheck", task.spec, "--format", "json", "-o", str(saved)]
        begun = time.perf_counter()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        seconds = time.perf_counter() - begun
        if done.returncode != task.status:
            return seconds, f"exit status {done.returncode}, expected {task.status}: {done.stderr[-300:]}"
        claims = json.loads(saved.read_text(encoding="utf-8"))["claims"]
    tried = {verdict["tried"] for verdict in claims if verdict["claim"].startswith("keep")}
    return seconds, "" if not task.confirmed or tried == {"confirmed"} else f"claims: {claims}"


def main() -> int:
    """Time all tasks; return 1 where one is wrong or too slow."""
    failed = 0
    for task in TASKS:
        seconds, wrong = timed(task)
        late = seconds > task.target
        failed += late or bool(wrong)
        name = Path(task.spec).name
        print(
            f"{name:24} {seconds:6.1f} s of {task.target:.0f} s{' TOO SLOW' if late else ''} {wrong}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
