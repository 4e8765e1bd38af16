"""What the machine was doing meanwhile: whose processors, which clocks, who else."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ampcheck.values.wording import percent

_STAT = Path("/proc/stat")
#: Others' share of the processors from which a note is made.
BUSY = 0.1
#: A change of the GPU's clock from which a note is made.
CLOCK_CHANGE = 0.05


@dataclass(frozen=True, slots=True)
class _State:
    wall: float
    own: float
    busy: float  #: seconds of all processors together
    clock: float
    others: int  #: processes on the GPU


class MachineLoad:
    """Notes what else happened on the machine during a measurement."""

    def __init__(self, device: torch.device) -> None:
        """Begin."""
        self._device = device
        self._before = self._state()

    def notes(self) -> tuple[str, ...]:
        """Return what has to be known beside the times."""
        before, after = self._before, self._state()
        wall = max(after.wall - before.wall, 1e-9)
        others = (after.busy - before.busy - (after.own - before.own)) / (wall * (os.cpu_count() or 1))
        found: list[str] = []
        if before.busy and others > BUSY:
            found.append(f"other work used {percent(others)} of the processors meanwhile")
        if before.clock and abs(after.clock / before.clock - 1) > CLOCK_CHANGE:
            found.append(f"the GPU's clock went from {before.clock:.0f} to {after.clock:.0f} MHz meanwhile")
        if max(before.others, after.others):
            found.append(f"{max(before.others, after.others)} other processes were on the GPU")
        return tuple(found)

    def _state(self) -> _State:
        cuda = self._device.type == "cuda"
        clock = _clock(self._device) if cuda else 0.0
        return _State(
            time.monotonic(), time.process_time(), _busy(), clock, _others(self._device) if cuda else 0
        )


def _busy() -> float:
    if not _STAT.exists():
        return 0.0
    user, nice, system, _, _, irq, soft, steal = map(int, _STAT.read_text(encoding="ascii").split()[1:9])
    ticks: int = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft + steal) / ticks


def _clock(device: torch.device) -> float:
    try:
        return float(torch.cuda.clock_rate(device))
    except (ModuleNotFoundError, RuntimeError):  # without nvidia-ml-py, or in a container that hides it
        return 0.0


def _others(device: torch.device) -> int:
    try:
        listed = torch.cuda.list_gpu_processes(device)
    except (ModuleNotFoundError, RuntimeError):
        return 0
    pids = {int(line.split()[1]) for line in listed.splitlines() if line.startswith("process")}
    return len(pids - {os.getpid()})


def environment(device: torch.device) -> dict[str, str]:
    """Return what a time means nothing without."""
    found = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name or platform.processor() or 'unknown'}, {os.cpu_count()} cores, {capability}"
