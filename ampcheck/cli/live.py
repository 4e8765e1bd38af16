"""One line at the bottom of a terminal that says where a training loop stands, and makes way for the script's own."""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

#: Seconds between two drawings.
PAUSE = 0.1
#: Characters that fit where nobody says how many do.
UNKNOWN = 79
_CLEAR = "\r\x1b[2K"


class LiveLine:
    """A line on standard error; the script's output wins: where it has begun a line, none is drawn."""

    def __init__(self) -> None:
        """Begin to make way for what is written to the terminal."""
        self._out = sys.stderr
        self._shown = False
        self._free = True  #: the cursor stands at the start of a line
        self._next = 0.0
        self._wrapped: list[TextIO] = []
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty():
                with contextlib.suppress(AttributeError):  # a stream that takes none is the script's affair
                    stream.write = functools.partial(self._through, stream.write)  # type: ignore[method-assign]
                    self._wrapped.append(stream)

    def draw(self, words: Callable[[], str]) -> None:
        """Show a line, unless one was shown a moment ago."""
        now = time.monotonic()
        if not self._free or now < self._next:
            return
        self._next = now + PAUSE
        self._put(_CLEAR + words()[: self._width()])
        self._shown = True

    def close(self) -> None:
        """Take the line away, and give the streams back."""
        self._clear()
        for stream in self._wrapped:
            vars(stream).pop("write", None)
        self._wrapped = []

    def _through(self, write: Callable[[str], Any], text: str) -> Any:
        self._clear()
        if text:
            self._free = text.endswith("\n")
        return write(text)

    def _clear(self) -> None:
        if self._shown:
            self._shown = False
            self._put(_CLEAR)

    def _put(self, text: str) -> None:
        type(self._out).write(self._out, text)
        self._out.flush()

    def _width(self) -> int:
        try:
            columns = os.get_terminal_size(self._out.fileno()).columns
        except OSError:
            columns = 0
        return columns - 1 if columns > 1 else UNKNOWN  # some terminals say that they have no columns


def wanted() -> bool:
    """Tell whether standard error is a terminal that can take a line away."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
