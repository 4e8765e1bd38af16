"""Writing a file so that it is whole or not there at all."""

import os
from pathlib import Path

from ampcheck.errors import ReportError


def replace_file(path: Path, text: str) -> None:
    """Write a file by replacing it in one move; what was there before stays if anything goes wrong."""
    target = Path(os.path.realpath(path))  # replacing a symbolic link would leave its target stale
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_text(text, encoding="utf-8")  # a pipe or /dev/stdout must not be replaced
            return
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"expected a place to write, could not write {str(path)!r}: {error.strerror}; pass another path"
        ) from error
