"""Say what ampcheck finds on this machine: torch, the GPU, its own kernel, and the frameworks it knows.

The exit status is 1 where something is missing that ampcheck needs.
"""

import argparse
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

#: What ampcheck has a callback or a target for, and the oldest version that it was tried with.
FRAMEWORKS = {
    "lightning": "2.5",
    "transformers": "4.50",
    "accelerate": "1.0",
    "keras": "3.9",
    "torchvision": "0.20",
    "timm": "1.0",
    "torchao": "",
    "determined": "",
    "tensorboard": "",
    "wandb": "",
    "mlflow": "",
    "safetensors": "",
}
OLDEST_TORCH = "2.11"
Line = tuple[bool, str, str]


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add no option: there is one thing to say."""


def run(_options: argparse.Namespace) -> int:
    """Print what was found, a line each, and return 1 where something is missing."""
    found = list(lines())
    for well, name, words in found:
        print(f"{'ok ' if well else '!! '} {name:<14} {words}")
    return int(not all(well for well, _, _ in found))


def lines() -> Iterator[Line]:
    """Yield whether all is well, a name, and what was found."""
    where = f"Python {platform.python_version()}, {platform.platform()}"
    yield True, "ampcheck", f"{version('ampcheck')}, {where}"
    yield from _torch()
    for name, oldest in FRAMEWORKS.items():
        found = _version(name)
        if found:
            old = bool(oldest) and _numbers(found) < _numbers(oldest)
            words = f"{found} is older than {oldest}, the oldest that is supported" if old else found
            yield not old, name, words
    missing = [name for name in FRAMEWORKS if not _version(name)]
    yield True, "not installed", ", ".join(missing) or "none"


def _torch() -> Iterator[Line]:
    if not _version("torch"):
        yield False, "torch", f"not installed; pip install 'torch>={OLDEST_TORCH}'"
        return
    import torch

    old = _numbers(torch.__version__) < _numbers(OLDEST_TORCH)
    yield not old, "torch", f"{torch.__version__}" + (f"; expected {OLDEST_TORCH} or newer" if old else "")
    yield True, "GPU", _gpu(torch)
    from ampcheck.observe.native import NATIVE

    slow = "not built: recording is slower; pip install again with a C compiler"
    yield True, "kernel", "compiled" if NATIVE is not None else slow
    yield True, "CPU", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch"


def _gpu(torch: object) -> str:
    cuda = getattr(torch, "cuda")  # noqa: B009  # torch has no types here
    if cuda.is_available():
        return ", ".join(cuda.get_device_name(index) for index in range(cuda.device_count()))
    return "none: a CPU stands in for CUDA, with CUDA's casting rules"


def _version(name: str) -> str:
    """Return the version of an installed package, '' where there is none; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    parts = text.split(".")[:2]
    return tuple(int("".join(char for char in part if char.isdigit()) or 0) for part in parts)
