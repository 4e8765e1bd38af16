"""The real files of a script, whatever is wrapped around Python's calls for them."""

import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ampcheck.values.wording import some

#: Files that are looked at before and after, at most.
MOST_FILES = 20_000
_STAT = os.stat
#: Python's own calls, whatever is wrapped.
_MAKE, _LIST, _OPEN = os.mkdir, os.scandir, io.open


def exists(path: Any) -> bool:
    """Tell whether there is something at a path."""
    try:
        _STAT(path)
    except (OSError, ValueError):
        return False
    return True


def make(folder: str) -> None:
    """Make a folder, and those above it."""
    if not exists(folder):
        make(os.path.dirname(folder))  # noqa: PTH120
        _MAKE(folder)


def copy_all(real: str, inside: str) -> None:
    """Copy a file, or a folder with all that is in it."""
    if os.path.isdir(real):  # noqa: PTH112
        make(inside)
        with _LIST(real) as entries:
            for entry in entries:
                copy_all(entry.path, f"{inside}/{entry.name}")
        return
    with _OPEN(real, "rb") as source, _OPEN(inside, "wb") as target:
        shutil.copyfileobj(source, target)


def within(path: str, place: str) -> bool:
    """Tell whether a path is a place or lies below it."""
    return path == place or path.startswith(place.rstrip("/") + "/")


def places(folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders that are the script's, and those that are left alone: temporary ones, devices and caches."""
    home = os.path.expanduser("~/.cache")  # noqa: PTH111
    caches = [os.environ.get(name, home) for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")]
    free = (folder, tempfile.gettempdir(), os.path.realpath(tempfile.gettempdir()), "/dev", "/proc", "/sys")
    return (str(Path.cwd()),), (*free, *caches)


def files_below(folder: str) -> dict[str, tuple[int, int]]:
    """Return the files below a folder with their size and time; hidden folders are passed over."""
    found: dict[str, tuple[int, int]] = {}
    waiting = [folder]
    while waiting and len(found) < MOST_FILES:
        try:
            with _LIST(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith((".", "__pycache__")):
                            waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        at = entry.stat()
                        found[entry.path] = at.st_size, at.st_mtime_ns
        except OSError:  # a folder that one may not read, or that is gone again
            continue
    return found


def is_output(path: str) -> bool:
    """Tell whether a file is where the standard output or error goes: whoever started the process put it there."""
    try:
        at = _STAT(path)
        return any(os.path.samestat(at, os.fstat(stream)) for stream in (1, 2))
    except OSError:
        return False


def listed(paths: tuple[str, ...]) -> str:
    """Return some paths in words: the first, and how many there are besides."""
    return some([os.path.relpath(path) for path in paths])
