"""Files that are replaced in one move: nobody finds half of one, and nobody can foresee the name beside it."""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from ampcheck.errors import ReportError

#: What is done with a character that UTF-8 has no bytes for: names of files may be any bytes.
UNWRITABLE = "backslashreplace"


def put_in_place(target: Path, text: str) -> None:
    """Write beside a file, under a name that nobody can foresee, and put that in its place with its mode."""
    part = _beside(target)
    opened = _opened(part)  # what lies there already is somebody else's, and stays
    try:
        with os.fdopen(opened, "w", encoding="utf-8", errors=UNWRITABLE) as file:
            file.write(text)
            if target.is_file():
                _keep_mode(file.fileno(), target)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    """Return a name in a file's folder that is nobody else's."""
    return target.with_name(f".ampcheck-{secrets.token_hex(8)}.part")


def _opened(path: Path) -> int:
    """Open a file that is not there yet; what a link points at is not opened."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)


def _keep_mode(file: int, target: Path) -> None:
    if hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(file, stat.S_IMODE(target.stat().st_mode))


def writable(path: str | Path) -> None:
    """Refuse a place where a file cannot be written."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            return
        part = _beside(target)
        os.close(_opened(part))
        part.unlink()
    except OSError as error:
        raise ReportError(f"cannot write {str(path)!r}: {error.strerror}; pass another path") from error
