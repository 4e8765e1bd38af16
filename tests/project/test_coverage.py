"""What a plain pytest covers is no less than pyproject.toml says it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_plain_tests_cover_what_they_covered(tmp_path):
    pytest.importorskip("coverage", reason="no coverage: pip install -e '.[dev]'")
    environment = os.environ | {"COVERAGE_FILE": str(tmp_path / "covered"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    commands = ["run -m pytest -q -n0 -p no:cacheprovider", "report --skip-covered"]
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", "coverage", *words.split()],
            check=False,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
