"""The nine stages, in order of worth, each with its question, its file and the seconds it may take."""

from pathlib import Path
from typing import NamedTuple

#: Seconds that the whole command may take.
TOTAL = 540
#: Seconds of these to build the extension and to start.
STARTING = 35
#: Bytes that all files may have together.
ROOM = 16 * 2**20


class Stage(NamedTuple):
    """One stage."""

    name: str
    letter: str  #: in the list of what was to be settled
    file: str
    seconds: int
    question: str
    environment: tuple[tuple[str, str], ...] = ()  #: variables that have to be set before torch starts


_SAME_BITS = (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),)

STAGES = (
    Stage("traces", "a", "traces.json", 70, "Are operations, dtypes, casts and exponents those of CUDA?"),
    Stage("silicon", "b", "silicon.json", 40, "How far are emulated results from the GPU's, in roundings?"),
    Stage("zoo", "c", "zoo.json", 95, "Is the verdict on each case of the zoo the same on CUDA?"),
    Stage("transparency", "d", "transparency.json", 45, "Does recording change a bit, or wait inside a step?",
          _SAME_BITS),
    Stage("kernel", "e", "cost.json", 40, "Are the Triton statistics exact, and how near to a copy's speed?"),
    Stage("cost", "e", "cost.json", 50, "What does a recorded step cost, beside other tools?"),
    Stage("bench", "f", "bench.json", 80, "How far off are predicted memory and time?"),
    Stage("scripts", "g", "scripts.json", 65, "Do real scripts run the same under `ampcheck run`?", _SAME_BITS),
    Stage("fp8", "h", "fp8.json", 20, "Are emulated FP8 products those of the card?"),
)  # fmt: skip
BY_NAME = {stage.name: stage for stage in STAGES}
FILES = tuple(dict.fromkeys(stage.file for stage in STAGES))


class Scope(NamedTuple):
    """How much a stage does, and where."""

    small: bool = False  #: of the self-test: a little of everything
    device: str = "cuda"
    folder: Path = Path()  #: for what a stage has to write for a while


def table() -> str:
    """Return the plan as Markdown."""
    head = "| | stage | file | at most, s | question |\n|---|---|---|---:|---|\n"
    rows = [f"| {s.letter} | {s.name} | `{s.file}` | {s.seconds} | {s.question} |\n" for s in STAGES]
    last = f"| | start | | {STARTING} | build the extension, load torch |\n| | **all** | | **{TOTAL}** | |\n"
    return head + "".join(rows) + last
