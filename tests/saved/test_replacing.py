"""Files that are replaced: with their mode, by several at once, through no link, under any name."""

import os
import re
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Layer, finding, report

from ampcheck.cli import writing
from ampcheck.diagnose.verdict import judged
from ampcheck.errors import ReportError
from ampcheck.renderers import RENDERERS, render
from ampcheck.renderers.saving import save_as
from ampcheck.saved import replacing
from ampcheck.saved.report_json import to_json, write
from ampcheck.values.report import Report
from ampcheck.values.wording import no_commands

#: What turns text around, hides in it, commands a terminal or a runner.
NASTY = "\u202eevil\u2066\x1b[31m\x07\x00\x9b\n::error::no\n~~~\n```\r::stop-commands::x"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o775])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "r.json"
    place.write_text("before")
    place.chmod(mode)
    write(place, "after")
    assert place.read_text() == "after"
    assert stat.S_IMODE(place.stat().st_mode) == mode


def test_writers_at_the_same_time_all_succeed_and_the_file_is_one_of_theirs(tmp_path: Path) -> None:
    place, problems = tmp_path / "r.json", []
    texts = [str(number) * 50_000 for number in range(6)]

    def again(text: str) -> None:
        try:
            for _ in range(20):
                write(place, text)
                assert place.read_text() in texts
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)

    threads = [threading.Thread(target=again, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert list(tmp_path.iterdir()) == [place]


def test_processes_that_write_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    code = (
        "import sys; from ampcheck.saved.report_json import write\nfor _ in range(200): write(*sys.argv[1:])"
    )
    texts = [str(number) * 50_000 for number in range(3)]
    place = tmp_path / "r.json"
    running = [subprocess.Popen([sys.executable, "-c", code, str(place), text]) for text in texts]
    assert [one.wait() for one in running] == [0, 0, 0]
    assert place.read_text() in texts
    assert list(tmp_path.iterdir()) == [place]


def test_names_beside_a_file_cannot_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    opened = replacing._opened
    monkeypatch.setattr(replacing, "_opened", lambda path: names.append(path) or opened(path))
    for _ in range(4):
        write(tmp_path / "r.json", "text")
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"\.ampcheck-[0-9a-f]{16}\.part", path.name) for path in names)


@pytest.mark.parametrize("there", ["link", "dangling link", "file"])
def test_what_lies_where_a_part_would_go_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.setattr(replacing.secrets, "token_hex", lambda _: "foreseen")
    part, victim = tmp_path / ".ampcheck-foreseen.part", tmp_path / "victim"
    if there == "link":
        victim.write_text("kept")
    if there == "file":
        part.write_text("kept")
    else:
        part.symlink_to(victim)
    with pytest.raises(ReportError, match=r"cannot write .*exists"):
        write(tmp_path / "r.json", "text")
    assert not (tmp_path / "r.json").exists()
    assert part.is_symlink() is (there != "file")
    kept = {"file": part, "link": victim}.get(there)
    assert kept is None or kept.read_text() == "kept"
    assert victim.exists() is (there == "link")


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
@pytest.mark.parametrize("form", RENDERERS)
def test_names_that_are_not_utf8_work_in_every_format(tmp_path: Path, form: str) -> None:
    odd = os.fsdecode(b"net\xff.py")
    made = report([Layer(odd, "Linear", odd)])
    found = finding(next(iter(made.low.sites)), message=odd)
    made = replace(judged(replace(made, target=odd)), findings=(found,))
    place = tmp_path / os.fsdecode(b"r\xfe.out")
    save_as(made, place, form)
    assert "net" in place.read_bytes().decode("utf-8")
    save_as(made, place, form)


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
def test_a_file_whose_name_is_not_utf8_is_shown_on_a_screen_that_is(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"r\xfe.json")
    write(place, to_json(replace(report([]), target=os.fsdecode(b"net\xff.py"))))
    command = [sys.executable, "-m", "ampcheck", "show", str(place)]
    shown = subprocess.run(command, check=False, capture_output=True)
    assert shown.returncode == 0, shown.stderr
    assert b"ampcheck net" in shown.stdout.decode("utf-8").encode()


def nasty() -> Report:
    made = (
        report([Layer("a", code=NASTY)]) if "code" in Layer.__dataclass_fields__ else report([Layer(NASTY)])
    )
    site = next(iter(made.low.sites))
    return replace(made, target=NASTY, notes=(NASTY,), patch=NASTY, findings=(finding(site, message=NASTY),))


@pytest.mark.parametrize("form", ["terminal", "markdown", "github-summary", "html"])
def test_text_that_turns_around_hides_or_commands_is_shown_and_does_nothing(form: str) -> None:
    text = render(nasty(), form)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", text)
    assert not re.search(r"^\s*::", no_commands(text), re.MULTILINE)


def test_no_wrap_puts_a_command_first_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writing, "width", lambda: 60)
    first = 0
    for words in range(5, 18):
        made = replace(report([]), notes=("word " * words + "::error::injected and behind",))
        assert writing.publish(made, [], None, color=False)
        shown = capsys.readouterr().out
        assert "::error" in shown
        assert not re.search(r"^\s*::error", shown, re.MULTILINE)
        first += bool(re.search(r"^\s*\\::error", shown, re.MULTILINE))
    assert first  # where a wrap puts it there, it is escaped
