"""A plan's change in a file of git's: whether it can be undone, the text it makes, and a branch for it."""

import re
import shutil
import subprocess
from pathlib import Path

from ampcheck.errors import TargetError


def patched(text: str, patch: str) -> str:
    """Return a text with a unified diff applied, which was made from this very text."""
    lines, made, at = text.splitlines(keepends=True), [], 0
    for line in patch.splitlines(keepends=True)[2:]:
        head = re.match(r"@@ -(\d+)", line)
        if head is not None:
            start = int(head[1]) - 1
            made += lines[at:start]
            at = start
        elif line[0] == "+":
            made.append(line[1:])
        elif line[:1] in " -":
            if at >= len(lines) or lines[at].rstrip("\n") != line[1:].rstrip("\n"):
                raise TargetError("the file has changed since it was audited; audit it again")
            made += [lines[at]] if line[0] == " " else []
            at += 1
    return "".join([*made, *lines[at:]])


def in_git(path: Path) -> bool:
    """Tell whether a file is held by a repository of git."""
    return (
        shutil.which("git") is not None
        and not _git(path, "ls-files", "--error-unmatch", path.name).returncode
    )


def unsaved(path: Path) -> str:
    """Return why git could not bring a file back as it is now; '' where it could."""
    if not in_git(path):
        return "is not held by git"
    changed = _git(path, "status", "--porcelain", "--", path.name).stdout.strip()
    return "has changes that are not committed" if changed else ""


def on_branch(path: Path, branch: str, message: str) -> str:
    """Commit a file to a new branch, and return the branch that was left."""
    back = _git(path, "rev-parse", "--abbrev-ref", "HEAD").stdout.strip()
    for words in (("switch", "-c", branch), ("commit", "-m", message, "--", path.name)):
        done = _git(path, *words)
        if done.returncode:
            raise TargetError(f"git {words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return back


def _git(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git in the folder of a file."""
    return subprocess.run(  # noqa: S603  # words of ours
        ["git", *words],  # noqa: S607  # the user's own git
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
