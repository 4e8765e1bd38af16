"""Runs a script, a module or a command as Python itself would, in this process."""

import importlib.machinery
import io
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType

from ampcheck.errors import TargetError
from ampcheck.targets.notebook import SUFFIX, code_of

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class Program:
    """What is to be run."""

    kind: str  #: script, module or command
    name: str  #: a path, a module's name, or code
    arguments: tuple[str, ...] = ()
    root: str = ""  #: the folder that a module is imported from; '' for the current one

    @property
    def shown(self) -> str:
        """Return how a person would write it."""
        if self.kind == "command":
            return "-c " + self.name.strip().split("\n")[0]
        return " ".join([*(["-m"] if self.kind == "module" else []), self.name, *self.arguments])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    status: int
    error: BaseException | None = None  #: what the program raised, an exit left out


def find(name: str) -> str:
    """Return the path of a script: a file, a folder with a __main__.py, or a command on the PATH."""
    path = Path(name)
    if path.is_dir() and (path / "__main__.py").is_file():
        return str(path / "__main__.py")
    if path.is_file():
        return name
    if os.sep not in name:
        for folder in os.get_exec_path():
            command = Path(folder) / name
            if command.is_file() and _is_python(command):
                return str(command)
    raise TargetError(
        f"expected a script that exists, got {name!r}{_beside(name)}; pass a file, -m MODULE, -c CODE or a command "
        "that is written in Python"
    )


def _beside(name: str) -> str:
    """Return the scripts whose names are like one that does not exist."""
    folder = Path(name).parent
    near = get_close_matches(Path(name).name, [path.name for path in folder.glob("*.py")], n=1)
    return f"; did you mean {folder / near[0]}?" if near else ""


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        return b"python" in file.readline(256)


def launch(program: Program) -> Ended:
    """Run a program as the main module; its exceptions, exit status and output are its own."""
    before = sys.argv, sys.path[:1]
    try:
        return _guarded(lambda: _RUNNERS[program.kind](program))
    finally:
        sys.argv = before[0]
        with suppress(Exception):  # a script may have put anything there, or nothing
            sys.path[:1] = before[1]
        with suppress(Exception):
            sys.stdout.flush()


def _run_script(program: Program) -> None:
    path = str(Path(program.name).absolute())
    sys.argv = [program.name, *program.arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    code = compile(_text(path), path, "exec", dont_inherit=True)
    main = _main(path)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    exec(code, main.__dict__)  # noqa: S102  # it is what the user asked for


def _text(path: str) -> str | bytes:
    """Return what is run of a file: of a notebook its code cells."""
    if path.endswith(SUFFIX):
        return code_of(Path(path))
    with io.open_code(path) as file:
        return file.read()


def _run_module(program: Program) -> None:
    sys.argv = [program.name, *program.arguments]
    sys.path[0] = program.root or str(Path.cwd())
    runpy.run_module(program.name, run_name="__main__", alter_sys=True)


def _run_command(program: Program) -> None:
    sys.argv = ["-c", *program.arguments]
    sys.path[0] = ""
    exec(compile(program.name, "<string>", "exec", dont_inherit=True), _main(None).__dict__)  # noqa: S102


_RUNNERS: dict[str, Callable[[Program], None]] = {
    "script": _run_script,
    "module": _run_module,
    "command": _run_command,
}


def _main(path: str | None) -> ModuleType:
    """Return a fresh main module, as the interpreter makes it."""
    import builtins

    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):  # later ones make it when it is asked for
        main.__dict__.update({"__annotations__": {}})
    if path is not None:
        main.__file__ = path
        main.__dict__["__cached__"] = None
    sys.modules["__main__"] = main
    return main


def _guarded(run: Callable[[], None]) -> Ended:
    try:
        run()
    except SystemExit as ended:
        return Ended(_status(ended.code))
    except KeyboardInterrupt as error:
        _show(error)
        return Ended(130, error)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the script's
        _show(error)
        return Ended(1, error)
    return Ended(0)


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with suppress(Exception):
        print(code, file=sys.stderr or sys.__stderr__)  # as the interpreter does
    return 1


def _show(error: BaseException) -> None:
    """Print an exception as the interpreter would have, without the frames of this package."""
    # A script that calls itself without end comes further here than alone, and the interpreter prints no more than
    # its innermost 1000 frames: what would not have been reached hides where it began.
    reached = sys.getrecursionlimit() if isinstance(error, RecursionError) else None
    tb = _without_ours(error.__traceback__, reached)
    try:
        sys.excepthook(type(error), error.with_traceback(tb), tb)
    except BaseException as failed:  # noqa: BLE001  # a hook of the script's that fails itself
        with suppress(Exception):
            sys.stderr.write("Error in sys.excepthook:\n")
            traceback.print_exception(failed.with_traceback(_without_ours(failed.__traceback__)))
            sys.stderr.write("\nOriginal exception was:\n")
            traceback.print_exception(type(error), error, tb)


def _without_ours(tb: TracebackType | None, most: int | None = None) -> TracebackType | None:
    """Return a traceback without what this package and the running of modules have added; its first frames at most."""
    theirs = []
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and name not in {runpy.__file__, "<frozen runpy>"}:
            theirs.append(tb)
        tb = tb.tb_next
    rest = None
    for one in reversed(theirs[:most]):
        rest = TracebackType(rest, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return rest


def parse(words: Sequence[str], module: str | None, command: str | None) -> Program:
    """Return the program that a command line names."""
    if module is not None:
        return Program("module", module, tuple(words))
    if command is not None:
        return Program("command", command, tuple(words))
    if not words:
        raise TargetError("expected a script to run, got nothing; pass a file, -m MODULE or -c CODE")
    return Program("script", find(words[0]), tuple(words[1:]))
