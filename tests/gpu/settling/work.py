"""The process that works: it runs stages one after the other and says on a pipe what it is at.

    python -m settling.work OPTIONS-AS-JSON

The process that started it holds the clock. It ends this one where a stage takes too long, and starts another.
"""

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from settling.keep import COMPLETE, Keep, Row
from settling.plan import Scope

#: Exit status: CUDA is broken in this process, go on in another one.
AGAIN = 75
_PARENT_DEATH_SIGNAL = 1  #: as Linux numbers it for prctl
#: Words of errors after which nothing on this GPU works in this process.
_BROKEN = ("illegal memory access", "device-side assert", "unspecified launch failure", "CUDA error")


class Job(NamedTuple):
    """One row to be found."""

    key: str
    run: Callable[[], Row]


Jobs = Callable[[Scope], Iterator[Job]]


class Worker:
    """Runs the stages it was given."""

    def __init__(self, out: Path, scope: Scope, say: Callable[..., None]) -> None:
        """Prepare; `say` is told each stage and each row before it begins."""
        self._out, self._scope, self._say = out, scope, say
        self._machine = machine(scope.device)

    def stage(self, name: str, module: str, tried: list[str]) -> None:
        """Run one stage; rows that are there, and rows in `tried`, are not run again."""
        self._say("stage", name)
        begun, keep = time.monotonic(), Keep(self._out, name, self._machine)
        try:
            jobs: Jobs = import_module(module).jobs
            for job in jobs(self._scope):
                if job.key not in tried and not keep.has(job.key):
                    self._say("row", job.key)
                    self._one(job, keep)
            keep.end(COMPLETE, time.monotonic() - begun)
        except Exception as error:  # noqa: BLE001  # one stage must not end the others
            keep.end(f"raised {_said(error)}", time.monotonic() - begun)
        self._say("done", name)

    def _one(self, job: Job, keep: Keep) -> None:
        try:
            keep.put(job.key, job.run())
        except Exception as error:  # noqa: BLE001  # one row must not end the others
            keep.put(job.key, {"error": _said(error)})
            if any(words in str(error) for words in _BROKEN):
                sys.exit(AGAIN)


def _said(error: Exception) -> str:
    """Return an error in a line, without this machine's folders."""
    text = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
    return text.replace(str(Path(__file__).parents[3]), "…").replace(str(Path.home()), "~")[:300]


def machine(device: str) -> Row:
    """Return what the figures depend on."""
    if device == "none":
        return {"device": device}
    import torch

    found: Row = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "extension": _extension(),
        "commit": _commit(),
    }
    if device == "cuda":
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": list(torch.cuda.get_device_capability()),
            "memory": torch.cuda.get_device_properties(0).total_memory,
        }
    return found


def _extension() -> str:
    from ampcheck.observe.native import NATIVE

    return "compiled" if NATIVE is not None else "missing"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def end_with_parent() -> None:
    """End this process when the driver ends, however that is: a run that goes on would find another one writing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def main() -> None:
    """Run the stages in the options, telling the pipe with their number what is being done."""
    end_with_parent()
    options: dict[str, Any] = json.loads(sys.argv[1])
    with os.fdopen(options["pipe"], "w", buffering=1) as pipe:

        def say(*words: str) -> None:
            pipe.write(json.dumps(words) + "\n")

        if options["device"] == "cpu":
            import torch

            torch.set_num_threads(1)
        scope = Scope(options["small"], options["device"], Path(options["folder"]))
        worker = Worker(Path(options["out"]), scope, say)
        for name, module in options["stages"]:
            worker.stage(name, module, options["tried"].get(name, []))


if __name__ == "__main__":
    main()
