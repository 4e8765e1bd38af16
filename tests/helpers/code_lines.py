"""Where a text stands in the tests' own code."""

import inspect


def line_of(function, text):
    """Return the line of a function that holds a text."""
    source = inspect.unwrap(function).__code__
    with open(source.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    first = source.co_firstlineno
    return next(number for number, line in enumerate(lines[first - 1 :], first) if text in line)
