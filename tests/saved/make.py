"""Makes the saved reports that every format is shown: `python tests/saved/make.py`, then read the diff."""

from pathlib import Path

from ampcheck.cli import main

TARGETS = ("cnn", "t5", "no_scale", "dtype_error")


def make() -> None:
    """Audit every target, named from the top of the repository."""
    folder = Path(__file__).parent.relative_to(Path.cwd())
    for name in TARGETS:
        main([f"{folder}/{name}.py", "-o", f"{folder}/{name}.json"])


if __name__ == "__main__":
    make()
