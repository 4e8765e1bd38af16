"""Counts the instructions of Python that a call takes."""

import sys
from collections.abc import Callable


def instructions(call: Callable[[], object]) -> int:
    """Return how many instructions of Python a call takes: unlike time, the same on every machine."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
