"""Warnings of torch's that Python takes for ours: a function of ours stands between the caller and what warns.

They fall on that function's line. There the filters let all of them through; each is then issued again where it would
have been without us, by the filters of that place and once there if they say so.
"""

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_OURS = str(Path(__file__).parents[1]) + os.sep
#: What runs a script: nothing outside of it is the script's.
_LAUNCH = str(Path(__file__).parents[1] / "run" / "launch_script.py")
#: A stack level at which there is no frame.
_BEYOND = 1 << 20
#: Put among the filters by hand: `warnings.filterwarnings` has Python forget which warnings it has shown.
_ALL = ("always", None, Warning, re.compile(r"ampcheck\."), 0)


class Warned:
    """Gives warnings to whom they are for, until it is removed."""

    def __init__(self) -> None:
        self._shows = vars(warnings).get("_showwarnmsg")
        if self._shows is None:  # a Python that has no such name: lines may be ours
            return
        vars(warnings)["_showwarnmsg"] = functools.partial(_show, self._shows)
        warnings.filters.insert(0, _ALL)  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Leave warnings where they fall."""
        if self._shows is not None:
            vars(warnings)["_showwarnmsg"] = self._shows
        if _ALL in warnings.filters:
            warnings.filters.remove(_ALL)  # type: ignore[attr-defined]


def _show(shows: Callable[[Any], None], said: warnings.WarningMessage) -> None:
    ours = _blamed(said) if said.filename.startswith(_OURS) else None
    if ours is None:
        shows(said)
        return
    ours.f_globals.pop("__warningregistry__", None)  # that of another caller is another warning
    caller = _caller(ours)
    if caller is None:
        warnings.warn(said.message, said.category, _BEYOND, said.source)
        return
    held = caller.f_globals
    warnings.warn_explicit(
        said.message,
        said.category,
        caller.f_code.co_filename,
        caller.f_lineno,
        held.get("__name__") or "<string>",
        held.setdefault("__warningregistry__", {}),
        source=said.source,
    )


def _blamed(said: warnings.WarningMessage) -> FrameType | None:
    """Return the frame that a warning has fallen on."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (said.filename, said.lineno):
        frame = frame.f_back
    return frame


def _caller(ours: FrameType) -> FrameType | None:
    """Return the first frame around one of ours that is not ours; None where that is outside of the script."""
    frame: FrameType | None = ours
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        if frame.f_code.co_filename == _LAUNCH:
            return None
        frame = frame.f_back
    return frame
