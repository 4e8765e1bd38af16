"""Makes the saved reports that every format is shown: `python tests/saved/make.py`, then read the diff."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ampcheck.cli import main

TARGETS = ("cnn", "t5", "no_scale", "dtype_error")


def make() -> None:
    """Audit every target, named from the top of the repository, and one as two ranks."""
    folder = Path(__file__).parent.relative_to(Path.cwd())
    for name in TARGETS:
        main([f"{folder}/{name}.py", "-o", f"{folder}/{name}.json"])
    with TemporaryDirectory() as parts:
        # As two ranks of a job would write them: the same model, other data.
        ranks = [f"{parts}/rank{index}.json" for index in range(2)]
        for seed, rank in enumerate(ranks):
            main([f"{folder}/t5.py", "--seed", str(seed), "--scale", "2^12", "--no-verify", "-o", rank])
        main(["merge", *ranks, "-o", f"{folder}/two_ranks.json"])


if __name__ == "__main__":
    make()
