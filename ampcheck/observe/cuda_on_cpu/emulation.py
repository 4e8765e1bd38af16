"""CUDA's autocast, acting on CPU tensors.

`torch.autocast("cpu", ...)` decides in C++ kernels on the `AutocastCPU` dispatch key. `cuda_casting` puts
Python kernels in their place that follow CUDA's policy: the dispatcher then casts where CUDA would, also in
calls that C++ composites make, which no list of Python functions can reach.

Known differences: which fused attention kernel CUDA picks depends on the GPU (all take and return the low
dtype); cuDNN's recurrent kernels compute a whole layer in float16, the CPU a step at a time, rounding each
state to float16.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.library import fallthrough_kernel

from ampcheck.observe.cuda_on_cpu.casting import casting_kernel, clear_in_turn, weight_casts
from ampcheck.observe.cuda_on_cpu.dispatcher import Installation, Kernel
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
    with _casting.used():
        yield


def prepare() -> None:
    """Work out what `cuda_casting` installs: torch is asked for it, so nothing of torch may be replaced yet."""
    _kernels()


class _Casting(Installation):
    """CUDA's kernels, and what of torch's own keeps the casts of weights."""

    def __init__(self, kernels: Callable[[], Mapping[str, Mapping[str, Kernel]]]) -> None:
        super().__init__(kernels)
        self._patches = Patches()

    def _install(self) -> None:
        try:
            self._patches.put(torch, "clear_autocast_cache", clear_in_turn)
        except BaseException:
            self._patches.restore()
            raise
        super()._install()

    def _remove(self) -> None:
        super()._remove()
        self._patches.restore()
        weight_casts.forget()


@functools.cache
def _kernels() -> dict[str, dict[str, Kernel]]:
    """Return the kernels to install, by dispatch key and operator."""
    policies = dict(casting_policy()) | dict.fromkeys(_RECURRENT, CastPolicy.HALF)
    autocast: dict[str, Kernel] = dict.fromkeys(registered("cpu") - policies.keys(), fallthrough_kernel)
    autocast |= {name: casting_kernel(name, kind) for name, kind in policies.items()}
    for name in ("softmax", "log_softmax"):
        autocast[f"aten::{name}.int"] = reads_half(f"_{name}", autocast[f"aten::{name}.int"])
    return {"AutocastCPU": autocast | fourier_kernels()} | fused_kernels()


_casting = _Casting(lambda: _kernels())  # noqa: PLW0108  # a test puts others in their place
