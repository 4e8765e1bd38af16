"""Scripts that train and then die, and what their reports say of the steps before."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

#: Trains, prints each step, and from step 20 on does what its first argument says.
SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, time
    import torch
    from torch import nn

    class Odd(BaseException):
        pass

    def deeper(n):
        return deeper(n + 1)

    def own(number, frame):
        print("own handler", number, flush=True)
        os._exit(7)

    how, word = sys.argv[1], "step"
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        if os.environ["RANK"] != "0":
            how, word = "goes on", "other"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu")
    if how == "handler":
        signal.signal(signal.SIGTERM, own)
        assert signal.getsignal(signal.SIGTERM) is own
    began = time.monotonic()
    for step in range(1000):
        x, y = torch.randn(2, 16), torch.randint(0, 4, (2,))
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        # In one piece: ranks write at once.
        sys.stdout.write(f"{word} {step} {time.monotonic() - began:.2f}\\n")
        sys.stdout.flush()
        time.sleep(0.02)
        if time.monotonic() - began > float(os.environ.get("LIVES", 1.5)):
            break
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(30)
    if how == "goes on":
        time.sleep(3)
    if how == "handler":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    if how == "in C":
        import ctypes, threading
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        while True:
            ctypes.CDLL(None).sleep(30)
    if how == "_exit":
        os._exit(3)
    if how == "abort":
        os.abort()
    if how == "execv":
        os.execv("/bin/echo", ["echo", "another program"])
    if how == "BaseException":
        raise Odd("odd")
    if how == "MemoryError":
        raise MemoryError
    if how == "RecursionError":
        deeper(0)
    if how == "exit":
        sys.exit(5)
    """
)


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more}


def run(folder, how, *options, lives="1.5", **more):
    """Run the script under ampcheck until it dies as said; return what became of the process."""
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "ampcheck", "run", *options, "train.py", how],
        check=False,
        cwd=folder,
        env=environment(LIVES=lives),
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )


def last_step(output):
    """Return the last step that the script printed, and when that was."""
    times = _times(output, "step")
    return max(times), times[max(times)]


def seconds_lost(output, steps, word="step"):
    """Return how long before its end the script took the last step of a report; its steps begin with a word."""
    times = _times(output, word)
    last = max(times)  # another rank may have come further
    return times[last] - times.get(min(steps - 1, last), 0.0)


def _times(output, word):
    lines = [line.split() for line in output.splitlines()]
    return {int(line[1]): float(line[2]) for line in lines if len(line) == 3 and line[0] == word}


def saved(path):
    """Return how many steps a saved report knows of, and its notes."""
    report = json.loads(Path(path).read_text())
    return report["loop"]["steps"], report["notes"]
