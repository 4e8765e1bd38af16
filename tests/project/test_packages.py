"""The wheel and the source distribution: each is built, installed in a folder of its own, and tried."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"

#: A Python without a global lock, as far as what builds packages asks.
FREE = "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"


def test_a_free_threaded_python_can_install_it(tmp_path):
    """Setuptools refuses packages there whose wheels say that they keep to the limited API."""
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    (tree / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    run = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('..'))"
    done = subprocess.run(
        [sys.executable, "-c", FREE + run], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_sdist_builds_a_wheel_that_works(tmp_path):
    """The sdist holds all that the wheel needs, and the wheel all that the program needs."""
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    run = [sys.executable, "-c", BUILD]
    subprocess.run([*run, "sdist", str(tmp_path)], cwd=tree, check=True, capture_output=True)
    (source,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", str(source), "-C", str(tmp_path)], check=True)
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    subprocess.run([*run, "wheel", str(tmp_path)], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "home"
    command = [sys.executable, "-m", "zipfile", "-e", str(wheel), str(home)]
    subprocess.run(command, check=True)
    kept = {path.relative_to(home).as_posix() for path in home.rglob("*")}
    ours = subprocess.run(
        ["git", "ls-files", "ampcheck"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    missing = [name for name in ours.stdout.split() if not name.endswith((".c", ".h")) and name not in kept]
    assert not missing
    code = f"import sys; sys.path.insert(0, {str(home)!r}); import ampcheck; print(ampcheck.__file__)\n"
    code += "from ampcheck.cli import main; sys.exit(main(['explain', 'loss-scale']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(home))
    assert "# Loss scale" in done.stdout
