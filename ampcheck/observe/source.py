"""Which line of the user's program is running."""

import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

Spot = tuple[int, int]  #: the identity of a code object and the offset of its running instruction

_OBSERVE = str(Path(__file__).parent) + os.sep
_AMPCHECK = str(Path(__file__).parent.parent) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
#: What torch walks nested values with, where it is installed.
_OPTREE = str(Path(torch.__file__).parents[1] / "optree") + os.sep
#: What wraps torch's deprecated functions, torch.cuda.amp.GradScaler among them.
_TYPING = str(Path(torch.__file__).parents[1] / "typing_extensions.py")
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_SITE = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})

#: Where another environment's packages are, on whose path this one builds.
_INSTALLED = re.compile(r"^.*[/\\\\](?:site|dist)-packages[/\\\\]")

#: Code objects that are kept known: a program that makes ever new ones must be able to lose them.
_MOST_CODES = 4096

#: What calls the backward of a Function, and what begins a backward.
_APPLIES = tuple(os.path.join("torch", "autograd", name) for name in ("function.py", "graph.py"))  # noqa: PTH118
_OWN_BACKWARDS = frozenset({"apply", "_engine_run_backward"})

#: Frames of the script in which the name of something is looked for.
_FRAMES = 6

#: Python keeps in a frame what `f_locals` returns.
_KEEPS_LOCALS = sys.version_info < (3, 13)
#: References to that which are no others': the frame's, a variable's and an argument's.
_OWN_REFERENCES = 3

_SKIP, _USER, _STOP = range(3)


class SourceFinder:
    """Finds the innermost frame that is neither torch's nor ampcheck's; remembers what it has classified.

    Code objects are known by identity, because hashing one reads all of it; `_codes` keeps them alive.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}
        self._codes: dict[int, CodeType] = {}
        self._lines: dict[Spot, tuple[str, int]] = {}
        self._paths: dict[str, str] = {}

    def spot(self, depth: int = 2) -> Spot | None:
        """Return the running spot of user code, or None when ampcheck itself made the call."""
        frame: FrameType | None = sys._getframe(depth)  # inspect.currentframe has no depth
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self.classify(code)
            if kind:
                return (id(code), frame.f_lasti) if kind == _USER else None
            frame = frame.f_back
        return None

    def spot_in_backward(self) -> Spot | None:
        """Return the running spot of a backward or a hook that the user has written; None where torch runs its own."""
        for frame in frames():
            code = frame.f_code
            kind = self._kinds[id(code)] if id(code) in self._kinds else self.classify(code)
            if kind == _USER:
                return id(code), frame.f_lasti
            if code.co_name in _OWN_BACKWARDS and code.co_filename.endswith(_APPLIES):
                return None
        return None

    def own_spot(self, depth: int = 2) -> Spot | None:
        """Return the running spot of user code, or None when a module that it calls is running."""
        frame: FrameType | None = sys._getframe(depth)
        while frame is not None:
            code = frame.f_code
            if self._kinds.get(id(code), -1) < 0:
                self.classify(code)
            if self._kinds[id(code)]:
                return (id(code), frame.f_lasti) if self._kinds[id(code)] == _USER else None
            if code.co_name == "_call_impl" and code.co_filename.startswith(_TORCH):
                return None
            frame = frame.f_back
        return None

    def caller(self, spot: Spot | None) -> tuple[str, str]:
        """Return the user's own line ("train.py:9") and the function of a library that it led to.

        Both are '' where the spot is the user's own, or nobody's.
        """
        if spot is None or not in_library(self._codes[spot[0]].co_filename):
            return "", ""
        for frame in frames():
            name = frame.f_code.co_filename
            if is_user_file(name) and not in_library(name):
                return f"{shown_path(name)}:{frame.f_lineno}", self._codes[spot[0]].co_qualname
        return "", ""

    def classify(self, code: CodeType) -> int:
        """Tell of a code object what `classify` tells of its file, and keep it alive."""
        self._codes[id(code)] = code
        kind = self._kinds[id(code)] = classify(code.co_filename)
        return kind

    def text(self, spot: Spot | None) -> str:
        """Return the line of source at a spot; '' where it cannot be read."""
        if spot is None:
            return ""
        code = self._codes[spot[0]]
        return linecache.getline(code.co_filename, line_of(code, spot[1])).strip()

    def line(self, spot: Spot | None) -> tuple[str, int]:
        """Return the file and line of a spot; ('', 0) for None."""
        if spot is None:
            return "", 0
        if spot not in self._lines:
            code = self._codes[spot[0]]
            name = code.co_filename
            if name not in self._paths:
                self._paths[name] = shown_path(name)
            self._lines[spot] = (self._paths[name], line_of(code, spot[1]))
        return self._lines[spot]


@dataclass(slots=True)
class _Shared:
    """What recorders have found out about code, in one working directory: paths are shown from there."""

    folder: str
    finder: SourceFinder


_shared = _Shared("", SourceFinder())


def source_finder() -> SourceFinder:
    """Return the finder that one recorder takes over from the last."""
    try:
        folder = os.getcwd()  # noqa: PTH109  # a Path takes longer than what this saves
    except OSError:  # it was deleted
        folder = ""
    if folder != _shared.folder or len(_shared.finder._codes) > _MOST_CODES:
        _shared.folder, _shared.finder = folder, SourceFinder()
    return _shared.finder


def running_line() -> tuple[str, int]:
    """Return the file and line of user code that is running."""
    source = source_finder()
    return source.line(source.spot())


def frames() -> Iterator[FrameType]:
    """Yield the running frames, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # whoever iterates
    while frame is not None:
        yield frame
        frame = frame.f_back


def script_frames() -> Iterator[FrameType]:
    """Yield the innermost running frames of the script, as many as names are looked for in."""
    script = (one for one in frames() if _is_scripts(one.f_code.co_filename))
    return islice(script, _FRAMES)


def _is_scripts(filename: str) -> bool:
    return is_user_file(filename) or filename.startswith("<")


def classify(filename: str) -> int:
    """Tell whether a frame of this file is passed over, is the user's, or ends the search."""
    if filename.startswith(_AMPCHECK):
        return _SKIP if filename.startswith(_OBSERVE) else _STOP
    library = filename.startswith(_STDLIB) and not filename.startswith(_SITE)
    return _SKIP if library or filename.startswith((_TORCH, _OPTREE, _TYPING, "<")) else _USER


def is_user_file(filename: str) -> bool:
    """Tell whether a file is the user's, or a library's they chose: not torch, Python or ampcheck."""
    return classify(filename) == _USER


def in_library(filename: str) -> bool:
    """Tell whether a file is one that was installed."""
    return filename.startswith(_SITE) or _INSTALLED.search(filename) is not None


def object_of(frame: FrameType) -> Any:
    """Return the object whose method a frame runs, None for a function's, and for ampcheck's own."""
    code = frame.f_code
    holder = code.co_qualname.rpartition(".")[0]
    ours = code.co_filename.startswith(_AMPCHECK)
    if ours or not code.co_argcount or not holder or holder.endswith("<locals>"):
        return None
    return locals_of(frame).get(code.co_varnames[0])


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables.

    Before 3.13 a function's frame keeps what `f_locals` returns, and with it what the variables held then: asked of a
    frame that holds frames, neither ever ends. So it is emptied, unless somebody else has it, or a debugger or a
    profiler runs: behind their functions Python writes it back into the variables.
    """
    held = frame.f_locals
    copy = dict(held)
    if (
        _KEEPS_LOCALS
        and (sys.gettrace() or sys.getprofile()) is None
        and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and sys.getrefcount(held) <= _OWN_REFERENCES
    ):
        held.clear()
    return copy


def line_of(code: CodeType, offset: int) -> int:
    """Return the source line of an instruction."""
    for start, stop, line in code.co_lines():
        if start <= offset < stop and line is not None:
            return line
    return code.co_firstlineno


def shown_path(filename: str) -> str:
    """Return a path that reads the same on every machine: from here, or from where it is installed."""
    try:
        path = os.path.abspath(filename)  # noqa: PTH100  # resolve() would follow links away from the user's name
        roots = [str(Path.cwd()) + os.sep, *_SITE]
    except OSError:  # the folder that the script runs in was deleted
        path, roots = filename, list(_SITE)
    installed = _INSTALLED.match(path)  # an environment may lie in this folder
    root = installed[0] if installed else next((root for root in roots if path.startswith(root)), "")
    return path.removeprefix(root).replace(os.sep, "/")


def frames_match(names: Mapping[str, frozenset[str]]) -> bool:
    """Tell whether a frame on the stack is one of these functions, given by file suffix."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        for suffix, functions in names.items():
            if code.co_name in functions and code.co_filename.endswith(suffix):
                return True
        frame = frame.f_back
    return False


def in_engine() -> bool:
    """Tell whether autograd itself runs an operation, and no hook or backward of the script's."""
    for frame in frames():
        if frame.f_code.co_name in _OWN_BACKWARDS:
            return frame.f_code.co_name == "_engine_run_backward"
        if is_user_file(frame.f_code.co_filename):
            return False
    return False
