"""Systems that train with PyTorch, each run alone and under `ampcheck run`: what is the same, seen, not audited.

    python tests/studies/systems.py [NAME ...]    writes reports/systems.md, or the rows NAMEd in it

The digest is of the losses, the parameters and the state of every random generator, bit for bit. A program for two
ranks runs under torchrun, on two "nodes" of one rank each where the row says so; its digest is that of both.
"""

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ampcheck.diagnose.gaps import told_gaps
from ampcheck.saved.report_json import read
from ampcheck.values.loop import Loop
from ampcheck.values.wording import plural

PROGRAMS = Path(__file__).parent / "systems"
REPORT = Path(__file__).parents[2] / "reports" / "systems.md"
#: Seconds that a program may take, watched or not.
PATIENCE = 300
HEAD = """# Systems: the same digest with ampcheck and without

Each program trains a few steps, alone and under `ampcheck run`. The digest is of losses, parameters and the state of
every random generator (torch, Python, NumPy), bit for bit; of the programs on two ranks, of both. *Seen* is how many
steps were recorded in full, of all, and the verdict. Made by `python tests/studies/systems.py`, on a CPU.

| system | runs | same digest | seen | not audited |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class System:
    """A row of the table."""

    name: str
    program: str  #: its file and what is called in it
    needs: str = ""  #: a package
    nodes: int = 0  #: on which it runs, one rank each where there are two; 0 for no ranks
    why: str = ""  #: why it has no digest, or cannot have the same
    cuda: bool = (
        False  #: it refuses to run without a GPU: the CPU stands in for one, also where nothing is recorded
    )


_EAGER = (
    "what is compiled runs eagerly in recorded steps: with a backend that changes rounding the digest differs"
)
_STOOD_IN = "it needs a GPU: alone means with `--as-cuda` and no step recorded"
SYSTEMS = (
    System("DDP, fp16", "ranks ddp", nodes=1),
    System("DDP, fp16, two nodes", "ranks ddp", nodes=2),
    System("FSDP1, bf16", "ranks fsdp1_bf16", nodes=1),
    System("FSDP1, fp16, ShardedGradScaler", "ranks fsdp1_fp16", nodes=1),
    System("FSDP2, bf16", "ranks fsdp2_bf16", nodes=1),
    System("FSDP2, fp16, ShardedGradScaler", "ranks fsdp2_fp16", nodes=1),
    System("FSDP2, fp16, two nodes", "ranks fsdp2_fp16", nodes=2),
    System("tensor parallel (DTensor)", "ranks tensor_parallel", nodes=1),
    System("tensor parallel, two nodes", "ranks tensor_parallel", nodes=2),
    System("pipeline parallel (1F1B)", "ranks pipeline", nodes=1),
    System("pipeline parallel, two nodes", "ranks pipeline", nodes=2),
    System("a sum under way beside sends", "ranks waits_in_turn", nodes=1),
    System("DataParallel", "kinds data_parallel"),
    System("checkpointing", "kinds checkpointing"),
    System("checkpointing, reentrant", "kinds reentrant_checkpointing"),
    System("checkpointing, selective", "kinds selective_checkpointing"),
    System("torch.compile (backend eager)", "kinds compiled", why=_EAGER),
    System("torchao float8 (emulated)", "frameworks torchao_fp8", "torchao"),
    System("torchao int8 weights", "frameworks torchao_int8", "torchao"),
    System("bitsandbytes 4-bit", "frameworks bitsandbytes", "bitsandbytes"),
    System("PEFT LoRA", "frameworks peft", "peft"),
    System("Lightning", "frameworks lightning", "lightning"),
    System("Fabric", "frameworks fabric", "lightning"),
    System("HF Trainer", "frameworks hf_trainer", "transformers"),
    System("Accelerate", "frameworks accelerate", "accelerate"),
    System("ignite", "frameworks ignite", "ignite"),
    System("mmengine", "frameworks mmengine", "mmengine", why=_STOOD_IN, cuda=True),
    System("Keras", "frameworks keras", "keras"),
    System("Determined", "frameworks determined", "determined"),
    System("Ultralytics (YOLOv8n's own model and loss)", "frameworks ultralytics", "ultralytics"),
    System("SpeechBrain", "frameworks speechbrain", "speechbrain"),
    System("FLOP counter", "kinds flop_counter"),
    System("dispatch and function modes of the script's", "kinds dispatch_modes"),
    System("torch.func: vmap, grad, jvp", "kinds transforms"),
    System("autograd functions with custom_fwd", "kinds custom_functions"),
    System("operators of the script's own", "kinds custom_operators"),
    System("a wrapper subclass", "kinds wrapper_subclass"),
    System("a subclass that hears of calls", "kinds function_subclass"),
    System("nested tensors", "kinds nested_tensors"),
    System("fake tensors within a step", "kinds fake_tensors"),
    System("a process beside it", "kinds processes"),
    System("training in another thread", "kinds threads"),
    System("hooks and modules made at the first forward", "kinds hooks_and_swaps"),
)


def run(system: System, folder: Path, *, watched: bool) -> tuple[int, list[str], str]:
    """Run a program; return its exit status, its digests, and the end of what it said."""
    file, name = system.program.split()
    out = folder / f"{name}{system.nodes}.json"
    nothing = ["--steps", "1000000"] if system.cuda and not watched else []
    ours = ["-m", "ampcheck", "run", "--no-live", "-o", str(out)] if watched or system.cuda else []
    ours += [*(["--as-cuda"] if system.cuda else []), *nothing]
    script = [str(PROGRAMS / f"{file}.py"), name]
    if not system.nodes:
        commands = [[sys.executable, *ours, *script]]
    else:
        place = f"127.0.0.1:{_free_port()}"
        many = ["--nproc-per-node", str(2 // system.nodes), "--nnodes", str(system.nodes)]
        many += ["--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", name]
        command = [sys.executable, "-m", "torch.distributed.run", *many, *(ours or []), *script]
        commands = [command] * system.nodes
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda command: _ran(command, folder), commands))
    text = "".join(one[1] for one in done)
    return max(one[0] for one in done), sorted(re.findall(r"DIGEST ([0-9a-f]{16})", text)), text[-2000:]


def _ran(command: list[str], folder: Path) -> tuple[int, str]:
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "TIMED OUT"
    return done.returncode, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def row(system: System, folder: Path) -> tuple[str, bool]:
    """Return a row of the table, and whether the program is as it is alone."""
    if system.needs and find_spec(system.needs) is None:
        return f"| {system.name} | – | – | {system.needs} is not installed here | – |", True
    alone, digests, said = run(system, folder, watched=False)
    if not digests:
        return f"| {system.name} | not by itself: {_last(said)} | – | – | – |", True
    status, watched, said = run(system, folder, watched=True)
    same = digests == watched and alone == status
    runs = "yes" if alone == status else f"exit status {status}: {_last(said)}"
    seen, missed = _seen(folder / f"{system.program.split()[1]}{system.nodes}.json")
    why = f" ({system.why})" if system.why else ""
    return (
        f"| {system.name} | {runs} | {'yes' if digests == watched else '**no**'}{why} | {seen} | {missed} |",
        same,
    )


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if "Error" in line]
    return (lines[-1] if lines else said.strip()[-100:]).replace("|", "/")[:160]


def _seen(path: Path) -> tuple[str, str]:
    if not path.is_file():
        return "no report", "–"
    report = read(path)
    loop = report.loop or Loop()
    counted = [f"{count}× {what}" for what, count in report.low.not_audited.items()]
    gaps = [gap for gap in told_gaps(report) if not any(what in gap for what in report.low.not_audited)]
    listed = "; ".join([*gaps, *counted]).replace("|", "/")
    word = report.verdict.word.value.upper()
    return f"{len(loop.recorded)} of {plural(loop.steps, 'step')}, {word}", listed or "nothing"


def write(rows: dict[str, str]) -> None:
    """Write the table, the rows of systems that were not run as they stood."""
    before = REPORT.read_text(encoding="utf-8").splitlines() if REPORT.is_file() else []
    known = {line.split(" | ")[0].removeprefix("| "): line for line in before if line.startswith("| ")}
    lines = [rows.get(system.name) or known.get(system.name, "") for system in SYSTEMS]
    REPORT.write_text(HEAD + "\n".join(filter(None, lines)) + "\n", encoding="utf-8")


def main(names: list[str]) -> int:
    """Run the systems named, or all of them; return 1 if one is not as it is alone."""
    import tempfile

    wanted = [system for system in SYSTEMS if not names or system.name in names or system.program in names]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        rows = {}
        for system in wanted:
            rows[system.name], same = row(system, Path(folder))
            good = good and same
            print(rows[system.name], flush=True)
            write(rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
