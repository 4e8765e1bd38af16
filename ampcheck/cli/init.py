"""Write model(), batch() and loss() for a file that has none, next to it: ready to audit, and to change.

They are worked out from the forward's signature, the constructor and where it is called, and the data sets in the
file, and are tried on the model. `ampcheck init model.py` writes model_audit.py.
"""

import argparse
import contextlib
import shlex
import sys

from ampcheck.cli import output
from ampcheck.errors import TargetError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck init`."""
    parser.add_argument("target", metavar="FILE[:NAME]", help="a Python file, and the model in it")
    output.add_file(parser, "where to write (default: FILE_audit.py, next to it)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--traceback", action="store_true", help="show the whole traceback of an error")


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    from ampcheck.targets.spec import parse_spec

    spec = parse_spec(options.target)
    if spec.kind != "file":
        raise TargetError(f"expected a Python file, got {options.target!r}", hint="ampcheck init model.py")
    from ampcheck.targets.stubs import stubs

    with contextlib.redirect_stdout(sys.stderr):
        made = stubs(spec)
    path = options.output or made.path
    if path.exists() and not options.force:
        raise TargetError(f"{str(path)!r} exists already; --force overwrites it")
    path.write_text(made.text, encoding="utf-8")
    print(f"wrote {path}: {made.shown}")
    print(f"  ampcheck {shlex.quote(str(path))}")
    return 0
