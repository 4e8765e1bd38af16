"""The compiled extension under AddressSanitizer and UBSan: its tests, and random tensors."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ampcheck

SOURCES = Path(ampcheck.__file__).parent / "observe"
TESTS = Path(__file__).parent
#: Puts the extension of a file in the place of the one that is installed.
BOOT = """
import importlib.util, runpy, sys
import ampcheck.observe
spec = importlib.util.spec_from_file_location("ampcheck.observe._exphist", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["ampcheck.observe._exphist"] = ampcheck.observe._exphist = module
spec.loader.exec_module(module)
sys.argv = sys.argv[2:]
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    import pytest
    sys.exit(pytest.main(sys.argv[1:]))
"""


def library(name):
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Return how Python is started with an extension that looks after itself."""
    if shutil.which("gcc") is None or not Path(library("libasan.so")).is_absolute():
        pytest.skip("needs gcc with its sanitizers")
    built = tmp_path_factory.mktemp("sanitized") / "_exphist.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-g", "-pthread", "-DPy_LIMITED_API=0x030b0000"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    command += [f"-I{sysconfig.get_paths()['include']}", "-o", str(built)]
    command += [str(SOURCES / name) for name in ("_exphist.c", "_path.c", "_summing.c")]
    subprocess.run([*command, "-lm"], check=True)
    env = {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    def run(*words, seconds):
        return subprocess.run(
            [sys.executable, "-c", BOOT, str(built), *words],
            check=False,
            env=env,
            cwd=TESTS.parents[1],
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    return run


@pytest.mark.long
def test_random_tensors_stay_within_their_memory(sanitized):
    run = sanitized(str(TESTS.parent / "helpers" / "fuzz_native.py"), "20", seconds=300)
    assert run.returncode == 0, run.stderr[-4000:]
    assert "rounds" in run.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ["test_measure", "test_compiled", "test_recorder", "test_limits"])
def test_the_extensions_tests_pass_under_sanitizers(sanitized, name):
    # What puts the extension in its place loads ampcheck before pytest can rewrite it.
    known = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    words = ("pytest", "-q", "-x", "-p", "no:cacheprovider", *known, f"tests/observe/{name}.py")
    run = sanitized(*words, seconds=1500)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


@pytest.mark.long
def test_the_sanitizers_would_tell(sanitized):
    code = "import ctypes, torch\nfrom ampcheck.observe.native import NATIVE\n"
    code += "a = (ctypes.c_double * 262)()\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\n"
    code += "NATIVE.measure(libc.malloc(ctypes.c_size_t(64)), 64, 0, ctypes.addressof(a), 1, 1)\n"
    path = TESTS.parent / "helpers" / "beyond.py"
    path.write_text(code)
    try:
        run = sanitized(str(path), seconds=120)
    finally:
        path.unlink()
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr
