"""Makes the README's picture of the HTML report: `python tests/studies/pictures.py`."""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from browser import launched

HERE = Path(__file__).parents[1] / "helpers"
PICTURE = HERE.parents[1] / "reports" / "report.png"
SIZE = {"width": 1240, "height": 1500}


def audited(target: str, page: Path) -> None:
    """Write the page of an audit."""
    options = ["--format", "html", "-o", str(page), "--fail-on", "never"]
    subprocess.run([sys.executable, "-m", "ampcheck", target, *options], cwd=HERE, check=True)


def picture(page: Path, path: Path) -> None:
    """Write what a reader sees first, in a window of a fixed size."""
    with launched() as browser:
        tab = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        tab.goto(page.as_uri())
        tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        tab.screenshot(path=path, animations="disabled")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "report.html"
        audited("lm.py", written)
        picture(written, PICTURE)
    print(PICTURE)
