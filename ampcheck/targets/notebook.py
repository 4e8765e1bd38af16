"""A notebook as the Python that it runs: its code cells, one after the other."""

import json
import linecache
import tokenize
from pathlib import Path

SUFFIX = ".ipynb"
#: Cell magics whose cell is Python all the same.
_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")


def code_of(path: Path) -> str:
    """Return the text of a Python file, or the code of a notebook; tracebacks then show its lines."""
    if path.suffix != SUFFIX:
        return _as_python_reads(path)
    text = path.read_text(encoding="utf-8")
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is no notebook: {type(error).__name__}") from error
    code = "".join(f"# cell {number}\n{_python(source)}\n" for number, source in enumerate(sources, 1))
    if "display(" in code and "import display" not in code:
        code = "from builtins import print as display\n" + code
    linecache.cache[str(path)] = (len(code), None, code.splitlines(keepends=True), str(path))
    return code


def _as_python_reads(path: Path) -> str:
    """Return the text of a Python file in the encoding that it names, UTF-8 where it names none."""
    with tokenize.open(path) as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise SyntaxError(f"(unicode error) {error}") from error


def _python(source: str) -> str:
    """Return a cell without what only a notebook understands: as many lines as before."""
    lines = source.splitlines()
    if lines and lines[0].startswith("%%") and not lines[0].startswith(_PYTHON):
        return "\n".join(f"# {line}" for line in lines)
    return "\n".join(_line(line) for line in lines)


def _line(line: str) -> str:
    inner = line.lstrip()
    return f"{line[: len(line) - len(inner)]}pass  # {inner}" if inner.startswith(("%", "!", "?")) else line
