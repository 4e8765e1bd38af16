"""Running lines of functional code in FP32, for a second opinion: another way than ampcheck's own."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOW = (torch.float16, torch.bfloat16)
_MODULE_CALL = torch.nn.Module._call_impl.__code__


class _Wide(TorchFunctionMode):
    """Calls what is asked for on certain lines with floats and without autocast."""

    def __init__(self, lines: set[tuple[str, int]]) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not self._wanted():
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype in LOW else a for a in args]
            if getattr(func, "__name__", "") in ("half", "bfloat16"):
                return wide[0]
            return func(*wide, **(kwargs or {}))

    def _wanted(self) -> bool:
        """Tell whether one of the lines asked for this, not a module that it called."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code is not _MODULE_CALL:
            for file, line in self.lines:
                if frame.f_lineno == line and frame.f_code.co_filename.endswith(file):
                    return True
            frame = frame.f_back
        return False


@contextmanager
def lines_wide(lines: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Run these lines, file and number, in FP32."""
    chosen = set(lines)
    if not chosen:
        yield
        return
    with _Wide(chosen):
        yield
