"""Whatever ends a script, its report is there: of all steps where it can be written, else of those a moment before."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import deaths
import pytest
from builders import Layer, report

from ampcheck.cli import main, writing
from ampcheck.diagnose.verdict import judged
from ampcheck.errors import ReportError
from ampcheck.run import endings as endings_module
from ampcheck.run.endings import Endings
from ampcheck.run.keeping import PAUSE, Corner, Keeper, unfinished
from ampcheck.saved.report_json import read
from ampcheck.values.verdict import Health

TRAINING = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# -- kept while it runs


def until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_report_is_written_soon_after_something_was_seen_and_not_by_the_caller(tmp_path):
    place, threads = tmp_path / "r.json", []

    def make():
        threads.append(threading.get_ident())
        return report([])

    keeper = Keeper(make, lambda: place)
    assert not place.exists()
    before = {thread.ident for thread in threading.enumerate()}
    keeper.stir()
    until(place.exists)
    keeper.close()
    assert read(place) == report([])
    assert threading.get_ident() not in threads
    assert {thread.ident for thread in threading.enumerate()} == before  # the script sees no thread of ours


def test_writing_takes_a_small_share_of_the_time(tmp_path):
    made = []
    keeper = Keeper(lambda: made.append(time.monotonic()) or report([]), lambda: tmp_path / "r.json")
    end = time.monotonic() + 2.5 * PAUSE
    while time.monotonic() < end:
        keeper.stir()
        time.sleep(0.001)
    keeper.close()
    assert 2 <= len(made) <= 3


def test_what_changes_while_a_report_is_made_is_read_again(tmp_path):
    answers = [RuntimeError("dictionary changed size during iteration"), RuntimeError("again"), None]

    def make():
        problem = answers.pop(0)
        if problem is not None:
            raise problem
        return report([])

    Keeper(make, lambda: tmp_path / "r.json").write()
    assert read(tmp_path / "r.json") == report([])


def test_a_full_disk_is_told_of_once_and_the_script_goes_on(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise ReportError("expected a place to write, could not write 'r.json': No space left on device")

    monkeypatch.setattr("ampcheck.run.keeping.write", full)
    keeper = Keeper(lambda: report([]), lambda: tmp_path / "r.json")
    keeper.write()
    keeper.write()
    told = capsys.readouterr().err
    assert told.count("No space left on device") == 1
    assert "cannot save the report while the script runs" in told


def test_a_report_that_is_not_complete_says_so_and_which_step_was_the_last():
    half = unfinished(report([]), 13)
    assert "the last recorded step is 12" in half.notes[0]
    assert half.notes[0] in half.verdict.coverage.gaps


def test_a_report_that_is_not_complete_is_never_safe():
    whole = judged(report([Layer("layer")]))
    assert whole.verdict.word is Health.SAFE
    assert judged(unfinished(whole, 3)).verdict.word is Health.PARTLY_AUDITED


def test_where_no_file_is_named_the_report_lies_in_a_folder_of_its_own():
    corner = Corner()
    place = corner.file("run.partial.json")
    assert place.parent.stat().st_mode & 0o777 == 0o700
    corner.clear()
    assert not place.parent.exists()


# -- signals


@pytest.fixture
def publishing():
    told = []
    endings = Endings(told.append)
    yield told, endings
    endings.close()


def test_handlers_of_the_script_run_after_the_report_is_published_and_are_the_ones_it_sees(publishing):
    told, _ = publishing
    order = []
    before = signal.signal(signal.SIGTERM, lambda *_: order.append(list(told)))
    assert before == signal.SIG_DFL
    mine = signal.getsignal(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: order)
    assert order == [[False]]  # published before, and the process does not end
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is mine
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_signals_that_a_script_ignores_are_ignored(publishing):
    told, _ = publishing
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.1)
    assert told == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_afterwards_signals_are_as_before():
    def state():
        return signal.signal, signal.getsignal, [signal.getsignal(number) for number in endings_module.ENDING]

    before = state()
    endings = Endings(lambda _: None)
    assert state()[0] is not before[0]
    assert state()[2] == before[2]
    endings.close()
    assert state() == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_script_that_listens_to_signals_itself_goes_on_listening():
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    signal.set_wakeup_fd(mouth.fileno())
    endings = Endings(lambda _: None)
    endings.close()
    assert signal.set_wakeup_fd(-1) == mouth.fileno()
    ear.close()
    mouth.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_script_that_closes_all_files_and_opens_its_own_keeps_these(tmp_path):
    child = os.fork()
    if not child:
        try:
            endings = Endings(lambda _: None)
            os.closerange(3, 32768)
            files = [(tmp_path / str(number)).open("w") for number in range(8)]
            endings.close()
            time.sleep(0.1)
            for file in files:
                file.write("kept")
                file.close()
        except BaseException:  # noqa: BLE001  # the parent hears of it
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {path.read_text() for path in tmp_path.iterdir()} == {"kept"}


def test_what_is_raised_while_publishing_is_not_raised_in_the_script(publishing):
    _, endings = publishing
    ran = []
    signal.signal(signal.SIGTERM, lambda *_: ran.append(True))
    endings._publish = lambda _: 1 / 0
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: ran)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert ran == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_has_the_handlers_that_it_would_have_had(publishing):
    told, _ = publishing
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    time.sleep(0.1)
    assert told == []  # the parent was not woken up


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_child_that_is_ended_as_soon_as_it_is_there_takes_nobody_with_it(publishing, monkeypatch):
    monkeypatch.setattr(endings_module, "GRACE", 0.3)
    told, _ = publishing
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for _ in range(40):  # without the mask, every second one woke its parent
        child = os.fork()
        if not child:
            time.sleep(10)
            os._exit(1)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    time.sleep(0.8)  # else this process would have been ended here
    assert told == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


# -- places


def test_places_are_tried_before_the_script_starts(tmp_path, capsys):
    (tmp_path / "folder.json").mkdir()
    script = tmp_path / "ran.py"
    script.write_text("print('ran')")
    for place in ("no/such/folder/r.json", "folder.json"):
        assert main(["run", "-o", str(tmp_path / place), str(script)]) == 2
        told = capsys.readouterr()
        assert "cannot write" in told.err
        assert "ran" not in told.out


def test_a_format_that_fails_leaves_the_others_and_the_screen(tmp_path, monkeypatch, capsys):
    def broken(_):
        raise TypeError("of our own")

    monkeypatch.setitem(writing.render.__globals__["RENDERERS"], "html", broken)
    outputs = [writing.parse(str(tmp_path / name)) for name in ("a.html", "a.json", "a.md")]
    assert not writing.publish(report([]), outputs, None, color=False)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".svg") == ["a.json", "a.md"]
    told = capsys.readouterr().err
    assert "could not write" in told
    assert "TypeError: of our own" in told
    assert "torch" in told or "ampcheck" in told


@pytest.mark.parametrize(("more", "status"), [((), 0), (("--fail-on", "error"), 2)])
def test_a_report_that_cannot_be_written_leaves_the_script_its_exit_status(
    tmp_path, monkeypatch, capsys, more, status
):
    def broken(_):
        raise TypeError("of our own")

    monkeypatch.setitem(writing.render.__globals__["RENDERERS"], "csv", broken)
    (tmp_path / "train.py").write_text(TRAINING)
    assert main(["run", "-o", str(tmp_path / "a.csv"), *more, str(tmp_path / "train.py")]) == status
    assert "could not write" in capsys.readouterr().err


@pytest.mark.parametrize("instead", ["None", "type('Tee', (), {'write': lambda _, text: len(text)})()"])
def test_a_script_that_replaces_its_standard_error_has_its_report(tmp_path, monkeypatch, capsys, instead):
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    (tmp_path / "train.py").write_text(f"{TRAINING}\nimport sys\nsys.stderr = {instead}\n")
    assert main(["run", "-o", str(tmp_path / "a.json"), str(tmp_path / "train.py")]) == 0
    assert read(tmp_path / "a.json").loop.steps == 2
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("outputs", "rank", "place"),
    [
        (["a.html", "b.json"], 0, "b.json"),
        (["a.html"], 0, "a.partial.json"),
        (["a.html", "b.json"], 3, "b.rank3.json"),
        (["-"], 0, None),
        ([], 2, None),
    ],
)
def test_where_a_report_is_kept(outputs, rank, place):
    found = writing.kept([writing.parse(word) for word in outputs], None, rank=rank)
    assert found == (place and Path(place))


def test_a_job_that_was_started_again_keeps_the_report_of_before(monkeypatch):
    output = writing.parse("out/r.json")
    assert writing.numbered(output) == output
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert writing.numbered(output) == output
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert writing.numbered(output).path == "out/r.restart2.json"
    assert writing.numbered(writing.parse("-")).path == "-"


# -- whole processes


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "SIGUSR1", "in C"])
def test_a_signal_that_ends_a_script_loses_nothing(tmp_path, how):
    ended = deaths.run(tmp_path, how, "-o", "r.json", "-o", "r.md")
    number = getattr(signal, how, signal.SIGTERM)
    assert ended.returncode == -number
    steps, notes = deaths.saved(tmp_path / "r.json")
    assert steps == deaths.last_step(ended.stdout)[0] + 1
    assert any("incomplete" in note for note in notes)
    assert "incomplete" in (tmp_path / "r.md").read_text()
    assert ended.stderr == ""


@pytest.mark.long
def test_a_handler_of_the_script_goes_on_when_the_report_is_there(tmp_path):
    ended = deaths.run(tmp_path, "handler", "-o", "r.json")
    assert ended.returncode == 7
    assert f"own handler {signal.SIGTERM}" in ended.stdout
    steps, _ = deaths.saved(tmp_path / "r.json")
    assert steps == deaths.last_step(ended.stdout)[0] + 1


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGKILL", "_exit", "abort", "execv"])
def test_a_sudden_death_loses_one_interval_at_most(tmp_path, how):
    ended = deaths.run(tmp_path, how, "-o", "r.html", lives="3")
    steps, notes = deaths.saved(tmp_path / "r.partial.json")
    assert deaths.seconds_lost(ended.stdout, steps) < 2 * PAUSE
    assert any("incomplete" in note for note in notes)


@pytest.mark.long
@pytest.mark.parametrize("how", ["BaseException", "MemoryError", "RecursionError"])
def test_exceptions_of_the_script_are_the_scripts(tmp_path, how):
    (tmp_path / "bare.py").write_text(deaths.SCRIPT)
    bare = subprocess.run(
        [sys.executable, "bare.py", how],
        check=False,
        cwd=tmp_path,
        env=deaths.environment(LIVES="0.1"),
        capture_output=True,
        text=True,
    )
    ended = deaths.run(tmp_path, how, "-o", "r.json", lives="0.1")
    assert ended.returncode == bare.returncode == 1
    assert ended.stderr.splitlines()[-1] == bare.stderr.splitlines()[-1]
    assert "ampcheck" not in ended.stderr
    assert json.loads((tmp_path / "r.json").read_text())["loop"]["steps"]


@pytest.mark.long
def test_a_script_that_refuses_its_arguments_says_so_and_nothing_else_is_said(tmp_path):
    (tmp_path / "args.py").write_text(
        "import argparse, torch\nargparse.ArgumentParser().parse_args()\nprint('not reached')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "ampcheck", "run", "args.py", "--nonsense"],
        check=False,
        cwd=tmp_path,
        env=deaths.environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "unrecognized arguments: --nonsense" in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if "ampcheck" in line]) <= 1


# -- loops and child processes


def train(steps, told=lambda _: None):
    import torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        told(step)


def test_a_watched_loop_keeps_its_report_while_it_runs(tmp_path):
    import ampcheck

    place = tmp_path / "r.json"

    def look(step):
        if step == 3:
            until(place.exists)
            found = read(place)
            assert any("incomplete" in note for note in found.notes)
            assert found.loop is not None
            assert 1 <= found.loop.steps <= 4

    with ampcheck.watch(keep=place):
        train(6, look)
    whole = read(place)
    assert whole.loop is not None
    assert whole.loop.steps == 6
    assert not any("incomplete" in note for note in whole.notes)


def test_a_place_where_nothing_can_be_kept_is_refused_before_the_loop(tmp_path):
    import ampcheck

    with pytest.raises(ReportError, match="cannot write"):
        ampcheck.watch(keep=tmp_path / "no" / "r.json")


def test_what_is_left_of_a_child_that_was_killed_is_read_and_what_is_damaged_is_not(tmp_path):
    from ampcheck.run.child_processes import Children, WatchOptions, _Watch
    from ampcheck.values.settings import Schedule

    options = WatchOptions("train.py", Schedule())
    children = Children(options)
    children._folder = tmp_path / "left"
    children._folder.mkdir()
    place = children._folder / "1.json"
    watch = _Watch(options, str(place))
    train(3)
    until(place.exists)
    (children._folder / "2.json").write_text("{damaged")
    first, second = children.reports()
    assert second is None
    assert first is not None
    assert any("incomplete" in note for note in first.notes)
    watch.end(())


@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
def test_what_ends_a_recorded_step_leaves_nothing_listening(error):
    import torch
    from torch.nn.modules import module as modules
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    import ampcheck

    class Raises(torch.nn.Linear):
        def forward(self, x):
            super().forward(x)
            raise error

    model = Raises(2, 2)
    with pytest.raises(error), ampcheck.watch(model):
        model(torch.ones(1, 2))
    assert not _get_current_dispatch_mode_stack()
    assert not modules._global_forward_hooks
    assert not modules._global_forward_pre_hooks
