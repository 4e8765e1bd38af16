"""Keeps what a script writes in a temporary folder: checkpoints, logs and pictures of an audit are nobody's files.

Python's calls that make, change or remove files are wrapped while a script is audited. A path that is written to lies
in the temporary folder from then on, for who reads it too. A library that writes past Python is not caught: the
current folder is looked at before and after, and what is new in it is shown.
"""

import builtins
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ampcheck.observe.patches import Patches
from ampcheck.run.import_hooks import after_import
from ampcheck.run.real_files import copy_all, exists, files_below, is_output, listed, make, places, within

#: Settings with which trackers of experiments send nothing, where the user has set none.
OFFLINE: Mapping[str, str] = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
}
#: Functions outside of Python's own that open a file by its path: module, object, position of the path.
NATIVE = (
    ("torch", "_C.PyTorchFileWriter", 0),
    ("torch", "_C.PyTorchFileReader", 0),
    ("safetensors.torch", "serialize_file", 1),
    ("cv2", "imwrite", 0),
    ("sqlite3", "connect", 0),
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(slots=True)
class Kept:
    """What a script has written."""

    written: tuple[str, ...] = ()  #: files, which are gone
    escaped: tuple[str, ...] = ()  #: files that were written all the same

    @property
    def words(self) -> tuple[str, ...]:
        """Return what has to be said of it, a sentence each."""
        shown: list[str] = []
        if self.written:
            shown.append(f"the script wrote {listed(self.written)}: into a temporary folder that was removed")
        if self.escaped:
            shown.append(f"a library wrote files outside Python's reach: {listed(self.escaped)}")
        return tuple(shown)


@contextmanager
def kept() -> Iterator[Kept]:
    """Keep what is written inside in a temporary folder, which is gone afterwards."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="ampcheck-audit-"))
    found, here, bytecode = Kept(), str(Path.cwd()), sys.dont_write_bytecode
    before = files_below(here)
    added = {name: value for name, value in OFFLINE.items() if name not in os.environ}
    calls = _Calls(folder)
    try:
        os.environ.update(added)
        sys.dont_write_bytecode = True
        calls.wrap()
        yield found
    finally:
        calls.restore()
        sys.dont_write_bytecode = bytecode
        for name in added:
            os.environ.pop(name, None)
        os.chdir(here)
        found.written = tuple(sorted(path.removeprefix(calls.files) for path in files_below(calls.files)))
        after = files_below(here)
        grown = (path for path, at in after.items() if before.get(path) != at)
        found.escaped = tuple(sorted(path for path in grown if not is_output(path)))
        shutil.rmtree(folder, ignore_errors=True)


class _Calls:
    """The wrapped calls: those that write go into the folder, and those that read follow them."""

    def __init__(self, folder: str) -> None:
        self.folder, self.files = folder, folder + "/files"
        self._gone: set[str] = set()  # what the script has removed of the real files
        self._stack, self._patches = ExitStack(), Patches()
        self._ours, self._free = places(folder)

    def wrap(self) -> None:
        """Wrap what touches files."""
        put = self._patches.put
        self._stack.callback(self._patches.restore)
        for owner in (builtins, io):
            put(owner, "open", self._opened)
        put(os, "open", self._opened_low)
        for name in ("stat", "lstat", "access", "readlink"):
            put(os, name, self._reads)
        for name in ("chmod", "utime", "truncate", "mkdir"):
            put(os, name, functools.partial(self._changes, name))
        for name in ("remove", "unlink", "rmdir"):
            put(os, name, self._removes)
        for name in ("rename", "replace", "link", "symlink"):
            put(os, name, functools.partial(self._moves, name))
        for name in ("listdir", "scandir"):
            put(os, name, self._lists)
        put(os, "chdir", self._enters)
        for module, path, at in NATIVE:
            self._stack.callback(after_import(module, functools.partial(self._native, module, path, at)))

    def restore(self) -> None:
        """Take everything away."""
        self._stack.close()

    def _native(self, module: str, path: str, at: int) -> None:
        *inner, name = path.split(".")
        owner = functools.reduce(getattr, inner, sys.modules[module])
        reads = name.endswith("Reader")

        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            given = list(args)
            if at < len(given) and isinstance(given[at], str | bytes | os.PathLike):
                given[at] = self._now(given[at]) if reads else self._elsewhere(given[at], copy=True)
            return original(*given, **kwargs)

        self._patches.put(owner, name, call)

    # -- where a path leads

    def _real(self, path: Any) -> str | None:
        """Return the full path of what is the script's to write; None for what is left alone."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # of what is not there yet too
        own = any(within(text, place) for place in self._ours) and not within(text, self.folder)
        return text if own or not any(within(text, place) for place in self._free) else None

    def _now(self, path: Any) -> Any:
        """Return where a path leads for who reads it."""
        real = self._real(path)
        if real is None:
            return path
        inside = self.files + real
        if exists(inside):
            return inside
        return self.folder + "/gone" if self._is_gone(real) else path

    def _is_gone(self, real: str) -> bool:
        return any(within(real, place) for place in self._gone)

    def _elsewhere(self, path: Any, *, copy: bool = False) -> Any:
        """Return where a path is written to; with `copy` what it holds comes along."""
        real = self._real(path)
        if real is None:
            return path
        inside, parent = self.files + real, os.path.dirname(real)  # noqa: PTH120
        if (exists(parent) and not self._is_gone(parent)) or exists(self.files + parent):
            make(self.files + parent)
        if copy and not exists(inside) and exists(real) and not self._is_gone(real):
            copy_all(real, inside)
        return inside

    # -- calls

    def _opened(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            return original(self._elsewhere(file, copy="w" not in mode), mode, *args, **kwargs)
        return original(self._now(file), mode, *args, **kwargs)

    def _opened_low(self, original: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None:
            return original(path, flags, *args, **kwargs)
        keeps = not flags & os.O_TRUNC
        there = self._elsewhere(path, copy=keeps) if flags & _WRITES else self._now(path)
        return original(there, flags, *args, **kwargs)

    def _reads(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        here = kwargs.get("dir_fd") is None
        return original(self._now(path) if here else path, *args, **kwargs)

    def _changes(self, name: str, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._real(path) is None or kwargs.get("dir_fd") is not None:
            return original(path, *args, **kwargs)
        if name == "mkdir" and exists(self._now(path)):
            raise FileExistsError(17, "File exists", str(path))
        return original(self._elsewhere(path, copy=name != "mkdir"), *args, **kwargs)

    def _removes(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        real, there = self._real(path), self._now(path)
        if real is None or there != path or kwargs.get("dir_fd") is not None:
            original(there, *args, **kwargs)
        elif not exists(real):
            original(path, *args, **kwargs)  # which says that there is none
        if real is not None:
            self._gone.add(real)

    def _moves(self, name: str, original: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        real = self._real(source) if name != "symlink" else None
        if real is not None:
            self._elsewhere(source, copy=True)
        original(source if real is None else self._now(source), self._elsewhere(target), *args, **kwargs)
        if real is not None and name != "link":
            self._gone.add(real)

    def _lists(self, original: Any, path: Any = ".") -> Any:
        """List what is in a folder, and what was put into it: names, or entries that one can iterate and close."""
        plain = original.__name__ == "listdir"
        real = self._real(path) if not isinstance(path, bytes) else None
        if real is None or not exists(self.files + real):
            return original(self._now(path))
        inside = list(original(self.files + real))
        known = {entry if plain else entry.name for entry in inside}
        outside = list(original(path)) if exists(real) and not self._is_gone(real) else []
        names = [(entry if plain else entry.name, entry) for entry in outside]
        rest = [entry for name, entry in names if name not in known and not self._is_gone(f"{real}/{name}")]
        return [*inside, *rest] if plain else _Entries([*inside, *rest])

    def _enters(self, original: Any, path: Any) -> None:
        original(path if self._real(path) is None or exists(path) else self._now(path))


class _Entries:
    """What `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, as the one of Python is ended."""
