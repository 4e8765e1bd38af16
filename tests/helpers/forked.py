"""`python` in a moment: `[*python(), ...]` does what `[sys.executable, ...]` does, in a fork that has loaded torch.

One process of a test run loads torch and ampcheck, and forks for every command. What a test starts is a small client:
it hands over its words, folder, environment, and the files that it reads and writes, passes signals on, and ends as the
fork does. A test about loading itself, or about what is read while torch is loaded, starts an interpreter of its own.
"""

import contextlib
import functools
import os
import signal
import socket
import sys
from io import TextIOWrapper
from types import TracebackType

#: What takes seconds to load, and what nearly every test needs.
LOADED = "torch torch._dynamo torch.distributed rich.console tabulate pandas scipy.stats hypothesis "
LOADED += "ampcheck.cli ampcheck.run.audit ampcheck.run.session"


@functools.cache
def python() -> tuple[str, ...]:
    """Return the command that stands for the interpreter; the first call starts the process that forks."""
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="forked")
    place = os.path.join(folder, "s")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(OMP_NUM_THREADS="1")
    with open(os.path.join(folder, "python"), "w") as script:
        script.write(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} ask {place} "$@"\n')
    os.chmod(script.name, 0o700)
    command = [sys.executable, __file__, "serve", place]
    with open(os.path.join(folder, "errors"), "wb") as errors:
        parent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        )
    assert parent.stdout is not None
    ready = parent.stdout.readline()
    with open(os.path.join(folder, "errors")) as said:
        assert ready == b"ready\n", said.read()

    def end() -> None:
        parent.kill()
        parent.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return sys.executable, "-IS", __file__, "ask", place


def executable() -> str:
    """Return the same as one file, for programs that are told of an interpreter by its path."""
    return os.path.join(os.path.dirname(python()[-1]), "python")


# -- the client: no import but these


def ask(place: str, words: list[str]) -> int:
    """Have a command run, and return its exit status; a signal that ends it ends this process too."""
    import json

    line = socket.socket(socket.AF_UNIX)
    line.connect(place)
    environment = dict(os.environ)
    if words[0] == "-u":
        words, environment = words[1:], environment | {"PYTHONUNBUFFERED": "1"}
    wanted = {"words": words, "folder": os.getcwd(), "environment": environment}
    socket.send_fds(line, [b"."], [0, 1, 2])
    line.sendall(json.dumps(wanted).encode() + b"\n")
    answers = line.makefile("rb")
    child = int(answers.readline())

    def passed_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, passed_on)
    status = int(answers.readline())
    if status < 0:
        _die(-status)
    return status


def _die(number: int) -> None:
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# -- the process that forks


def serve(place: str) -> tuple[list[str], list[str]]:
    """Fork for whoever asks, until the test run is over; return only in a fork, with its words and Python's path."""
    import gc
    import json
    import select

    import torch

    for name in LOADED.split():
        __import__(name)
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # so that a fork copies less
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the other threads"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen(16)
    os.write(1, b"ready\n")
    path = sys.path[1:]
    sys.executable = os.path.join(os.path.dirname(place), "python")  # what a fork starts is a fork too
    while True:
        for one in select.select([listening, 0], [], [])[0]:
            if one == 0:
                os._exit(0)  # nothing is ever written there: the test run is over
        line, _ = listening.accept()
        if os.fork():
            line.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        listening.close()
        _, files, _, _ = socket.recv_fds(line, 1, 3)
        wanted = json.loads(line.makefile("rb").readline())
        child = os.fork()
        if child:
            for file in files:
                os.close(file)
            _reported(line, child)
        line.close()
        return _become(wanted, files, path)


def _reported(line: socket.socket, child: int) -> None:
    line.sendall(b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(wanted: dict, files: list[int], path: list[str]) -> tuple[list[str], list[str]]:
    """Take over what a new interpreter would have had from its start."""
    import torch

    # After a fork torch makes its pool of threads anew at the next use, which two threads at once do not survive.
    torch.set_num_threads(1)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    strict = errors or "strict"
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=encoding, errors=strict, closefd=False)
    sys.stdout = sys.__stdout__ = _written(1, os.isatty(1), at_once, encoding=encoding, errors=strict)
    sys.stderr = sys.__stderr__ = _written(2, True, at_once, encoding=encoding, errors="backslashreplace")
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return wanted["words"], [*filter(None, more), *path]


def _written(file: int, by_line: bool, at_once: bool, **how: str) -> TextIOWrapper:
    bare = os.fdopen(file, "wb", buffering=0 if at_once else -1, closefd=False)
    return TextIOWrapper(bare, **how, line_buffering=by_line, write_through=at_once)


def run(words: list[str], path: list[str]) -> None:
    """Run a command as `python` does, as the main module of this process."""
    import builtins
    import runpy
    from importlib.machinery import SourceFileLoader
    from types import ModuleType

    kind = words[0]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):  # later ones make it when it is asked for
        main.__dict__.update({"__annotations__": {}})
    if kind[:2] == "-m":
        words = [kind[2:], *words[1:]] if kind[2:] else words[1:]
        sys.argv, sys.path = ["-m", *words[1:]], [os.getcwd(), *path]
        runpy._run_module_as_main(words[0])
        return
    if kind == "-c":
        sys.argv, sys.path = ["-c", *words[2:]], ["", *path]
        code = compile(words[1], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv, sys.path = words, [os.path.dirname(os.path.realpath(kind)), *path]
        main.__dict__.update({"__file__": os.path.abspath(kind), "__cached__": None})
        main.__loader__ = SourceFileLoader("__main__", kind)
        with open(kind, "rb") as file:
            code = compile(file.read(), os.path.abspath(kind), "exec", dont_inherit=True)
    exec(code, main.__dict__)


def end(words: list[str], path: list[str]) -> None:
    """Run a command and end as an interpreter does, without taking every module apart, which takes a second."""
    import atexit
    import threading

    status = 0
    try:
        run(words, path)
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
        status = left.code & 0xFF if isinstance(left.code, int) else int(left.code is not None)
    except BaseException as error:  # noqa: BLE001  # whatever a program raises is shown
        error.__traceback__ = _without_ours(error)
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 120
    if status < 0:
        _die(-status)
    os._exit(status)


def _without_ours(error: BaseException) -> TracebackType | None:
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>"}:
        found = found.tb_next
    return found


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    end(*serve(sys.argv[2]))
