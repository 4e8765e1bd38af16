"""CUDA's autocast, acting on CPU tensors.

`torch.autocast("cpu", ...)` decides in C++ kernels on the `AutocastCPU` dispatch key. `cuda_casting` puts
Python kernels in their place that follow CUDA's policy: the dispatcher then casts where CUDA would, also in
calls that C++ composites make, which no list of Python functions can reach.

Known differences: which fused attention kernel CUDA picks depends on the GPU (all take and return the low
dtype); cuDNN's recurrent kernels compute a whole layer in float16, the CPU a step at a time, rounding each
state to float16.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.library import Library, fallthrough_kernel

from ampcheck.observe.cuda_on_cpu.casting import casting_kernel, clear_in_turn, weight_casts
from ampcheck.observe.cuda_on_cpu.dispatcher import Kernel, install, remove
from ampcheck.observe.cuda_on_cpu.fused import fourier_kernels, fused_kernels, reads_half
from ampcheck.observe.cuda_on_cpu.policy import CastPolicy, casting_policy, registered
from ampcheck.observe.patches import Patches

# On CUDA these reach cuDNN, whose autocast kernel casts input, states and weights; on the CPU they are
# composites or oneDNN calls, so the cast is made one level up.
_RECURRENT = [
    f"aten::{kind}.{form}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")
]


@contextmanager
def cuda_casting() -> Iterator[None]:
    """Make `torch.autocast("cpu", dtype)` cast as `torch.autocast("cuda", dtype)` does, until exit.

    The dispatcher is one for the process: other threads that use CPU autocast meanwhile see it, too. Nested
    and concurrent uses share one installation, and the last exit removes it. Dropout and softmax take CUDA's
    kernels (`fused`): dropout outside autocast as well, so that paired steps run the same operators.
    """
    _installation.enter()
    try:
        yield
    finally:
        _installation.leave()


def prepare() -> None:
    """Work out what `cuda_casting` installs: torch is asked for it, so nothing of torch may be replaced yet."""
    _kernels()


class _Installation:
    """The kernels in the dispatcher, and how many users they have."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._libraries: list[Library] = []
        self._patches = Patches()

    def enter(self) -> None:
        """Install the kernels, or count one more user of them."""
        with self._lock:
            if not self._users:
                self._install()
            self._users += 1

    def leave(self) -> None:
        """Count one user less, and remove the kernels with the last."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._remove()

    def _install(self) -> None:
        try:
            self._patches.put(torch, "clear_autocast_cache", clear_in_turn)
            for key, kernels in _kernels().items():
                self._libraries.append(install(key, kernels))
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        while self._libraries:
            remove(self._libraries.pop())
        self._patches.restore()
        weight_casts.forget()


_installation = _Installation()


@functools.cache
def _kernels() -> dict[str, dict[str, Kernel]]:
    """Return the kernels to install, by dispatch key and operator."""
    policies = dict(casting_policy()) | dict.fromkeys(_RECURRENT, CastPolicy.HALF)
    autocast: dict[str, Kernel] = dict.fromkeys(registered("cpu") - policies.keys(), fallthrough_kernel)
    autocast |= {name: casting_kernel(name, kind) for name, kind in policies.items()}
    for name in ("softmax", "log_softmax"):
        autocast[f"aten::{name}.int"] = reads_half(f"_{name}", autocast[f"aten::{name}.int"])
    return {"AutocastCPU": autocast | fourier_kernels()} | fused_kernels()
