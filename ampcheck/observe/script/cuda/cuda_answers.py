"""The answers of `torch.cuda` where a CPU stands in for it: those of one GPU."""

from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch

_NAME = "a CPU standing in for CUDA"
_CAPABILITY = (8, 0)
_MEMORY = 2**34
#: Answered with nothing, and with zero.
_NOTHING = """set_device synchronize empty_cache reset_peak_memory_stats reset_max_memory_allocated manual_seed
manual_seed_all ipc_collect init _lazy_init set_rng_state set_rng_state_all set_per_process_memory_fraction
reset_accumulated_memory_stats reset_max_memory_cached seed seed_all set_stream""".split()
_ZERO = """memory_allocated max_memory_allocated memory_reserved max_memory_reserved current_device utilization
memory_cached max_memory_cached memory_usage temperature power_draw clock_rate""".split()

Answers = dict[tuple[Any, str], Any]


def answers(cuda: ModuleType, *, available: bool) -> Answers:
    """Return, for an owner and a name of it, what stands there instead; `available` says that there is a GPU."""
    found: Answers = {(cuda, name): _silent for name in _NOTHING}
    found |= {(cuda, name): _zero for name in _ZERO}
    found |= {(cuda, name): answer for name, answer in _SAID.items()}
    # Where these names come from they are asked for as well.
    parts = (cuda.random, cuda.memory, cuda.streams)
    found |= {(part, name): answer for (_, name), answer in found.items() for part in parts}
    found |= {(torch.cuda.nvtx, name): _silent for name in ("range_push", "range_pop", "mark")}
    found |= {
        (torch.accelerator, name): _silent for name in ("set_device_index", "synchronize", "set_stream")
    }
    found |= {
        (torch.accelerator, "current_device_index"): _zero,
        (torch.accelerator, "current_stream"): _Stream,
    }
    if available:
        found |= {(cuda, "is_available"): _yes, (cuda, "device_count"): _one}
        found |= {
            (torch.accelerator, "is_available"): _yes,
            (torch.accelerator, "device_count"): _one,
            (torch.accelerator, "current_accelerator"): lambda *_, **__: torch.device("cuda"),
        }
    return found


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_silent, _zero, _one, _yes, _no = map(_always, (None, 0, 1, True, False))


class _Stream:
    """A stream or an event of a device that does everything at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def query(self) -> bool:
        """Tell that everything is done."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return lambda *_, **__: 0.0


_SAID: dict[str, Any] = {
    "is_initialized": _yes,
    "is_bf16_supported": _yes,
    "is_tf32_supported": _yes,
    "is_current_stream_capturing": _no,
    "can_device_access_peer": _no,
    "get_device_name": lambda *_: _NAME,
    "get_device_capability": lambda *_: _CAPABILITY,
    "get_device_properties": lambda *_: SimpleNamespace(
        name=_NAME,
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY,
        multi_processor_count=1,
        warp_size=32,
    ),
    "get_arch_list": lambda: ["sm_{}{}".format(*_CAPABILITY)],
    "mem_get_info": lambda *_: (_MEMORY, _MEMORY),
    "memory_summary": lambda *_, **__: "",
    "list_gpu_processes": lambda *_: "",
    "memory_stats": lambda *_, **__: {},
    "memory_snapshot": lambda *_, **__: [],
    "initial_seed": torch.initial_seed,
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "device": _Stream,
    "device_of": _Stream,
    "current_stream": _Stream,
    "default_stream": _Stream,
    "Stream": _Stream,
    "Event": _Stream,
    "stream": lambda *_: ExitStack(),
}
