"""Several outputs of one report: which format each is in, and what is left of what was there before."""

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from saved_reports import FOLDER, saved

from ampcheck.cli import main, writing
from ampcheck.renderers import RENDERERS, markdown, render
from ampcheck.saved.report_json import read, to_json

T5 = str(FOLDER / "t5.json")
CNN = str(FOLDER / "cnn.json")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Run in a folder of its own, which no runner knows of."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


def test_every_output_is_in_the_format_of_its_ending(capsys):
    names = ("r.md", "r.sarif", "r.xml", "r.csv", "r.json", "r.txt", "r.SARIF")
    words = [word for name in names for word in ("-o", name)]
    assert main(["show", T5, *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err == "ampcheck: UNSAFE, AMP101 forward-overflow; the report is in r.md, r.sarif, r.xml and 4 more\n"
    )
    texts = {name: Path(name).read_text(encoding="utf-8") for name in names}
    assert texts["r.md"].startswith("# ampcheck: `tests/saved/t5.py`")
    assert json.loads(texts["r.sarif"])["version"] == "2.1.0"
    assert texts["r.SARIF"] == texts["r.sarif"]
    assert ET.fromstring(texts["r.xml"]).tag == "testsuites"
    assert texts["r.csv"] == render(saved("t5"), "csv")
    assert to_json(read("r.json")) == to_json(saved("t5"))
    assert texts["r.txt"].startswith("ampcheck tests/saved/t5.py")


def test_a_format_before_the_colon_goes_before_everything(capsys):
    main(["show", T5, "--format", "csv", "-o", "sarif:results.json", "-o", "./a:b.md"])
    assert json.loads(Path("results.json").read_text())["version"] == "2.1.0"
    assert Path("a:b.md").read_text(encoding="utf-8").startswith("# ampcheck")
    with pytest.raises(SystemExit) as refused:
        main(["show", T5, "-o", "sarf:x.json"])
    assert refused.value.code == 2
    assert "expected a format of csv, github, " in capsys.readouterr().err
    assert not Path("sarf:x.json").exists()


def test_an_ending_that_says_no_format_is_refused_before_the_work(capsys):
    assert main(["show", "no-such-report.json", "-o", "report.htlm"]) == 2
    told = capsys.readouterr().err
    assert "expected a file that ends in .txt, .json, .md, " in told
    assert "or FORMAT:FILE, got 'report.htlm'" in told
    assert main(["show", T5, "-o", "text", "-o", "terminal:report.log"]) == 1
    assert Path("text").read_text(encoding="utf-8") == Path("report.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["C:\\r.md", "./x:y.md", "a/b:c"])
def test_a_colon_in_a_path_is_no_format(path):
    assert writing.parse(path) == writing.Output(path, None)


def test_the_format_option_is_for_one_output_and_for_those_that_do_not_say_theirs(capsys):
    main(["show", T5, "--format", "sarif", "-o", "results.json"])
    assert json.loads(Path("results.json").read_text())["version"] == "2.1.0"
    main(["show", T5, "--format", "github", "-o", "-", "-o", "r.md", "-o", "plain"])
    out = capsys.readouterr().out
    assert out == render(saved("t5"), "github") == Path("plain").read_text(encoding="utf-8")
    assert Path("r.md").read_text(encoding="utf-8").startswith("# ampcheck")


@pytest.mark.parametrize("form", RENDERERS)
def test_every_format_goes_to_the_screen(form, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["show", CNN, "--format", form, "-v"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == render(saved("cnn"), form).rstrip("\n")


def test_markdown_has_its_pictures_beside_it():
    main(["show", T5, "-o", "sub.report.md"])
    text = Path("sub.report.md").read_text(encoding="utf-8")
    for name, picture in markdown.pictures(saved("t5")).items():
        assert f"](<sub.report.{name}.svg>)" in text
        assert Path(f"sub.report.{name}.svg").read_text(encoding="utf-8") == picture
    assert len(list(Path().iterdir())) == 4


def test_a_steps_summary_is_added_to(monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary")
    Path("summary").write_text("before\n")
    assert main(["show", T5, "-o", "summary"]) == 1
    main(["show", CNN, "-o", "markdown:summary", "-o", "r.sarif"])
    text = Path("summary").read_text(encoding="utf-8")
    parts = ["before\n", render(saved("t5"), "github-summary"), "\n", render(saved("cnn"), "markdown"), "\n"]
    assert text == "".join(parts)
    assert not list(Path().glob("*.svg"))


def test_a_steps_summary_keeps_githubs_limit(monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary")
    short, long = (render(saved("t5"), form) for form in ("github-summary", "markdown"))
    assert len(short.encode()) < len(long.encode())
    Path("summary").write_text("x" * (writing.SUMMARY_LIMIT - len(long.encode())))
    main(["show", T5, "-o", "markdown:summary"])
    assert Path("summary").read_text(encoding="utf-8").endswith(f"x{short}\n")
    assert Path("summary").stat().st_size <= writing.SUMMARY_LIMIT
    Path("summary").write_text("x" * (writing.SUMMARY_LIMIT - 9))
    assert main(["show", T5, "-o", "summary"]) == 1
    assert Path("summary").stat().st_size == writing.SUMMARY_LIMIT - 9
    assert "is full, nothing was added" in capsys.readouterr().err


def test_a_summary_that_cannot_be_written_says_so(monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/folder")
    assert main(["show", T5, "-o", "no/such/folder"]) == 2
    assert "expected GITHUB_STEP_SUMMARY to name a file" in capsys.readouterr().err


@pytest.mark.parametrize("known_by", ["git", "workspace"])
def test_files_are_named_from_the_top_of_the_repository(known_by, tmp_path, monkeypatch, capsys):
    if known_by == "git":
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    else:
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    folder = tmp_path / "models" / "small"
    (folder / "tests" / "saved").mkdir(parents=True)
    monkeypatch.chdir(folder)
    main(["show", T5, "--format", "github"])
    assert "file=tests/saved/t5.py," in capsys.readouterr().out  # not a file of this repository
    (folder / "tests" / "saved" / "t5.py").touch()
    main(["show", T5, "--format", "github"])
    assert "file=models/small/tests/saved/t5.py," in capsys.readouterr().out
    main(["show", T5, "-o", "r.sarif", "-o", "r.json"])
    (result,) = json.loads(Path("r.sarif").read_text())["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "models/small/tests/saved/t5.py"
    assert to_json(read("r.json")) == to_json(saved("t5"))
    monkeypatch.chdir(tmp_path)
    main(["show", T5, "--format", "github"])
    assert "file=tests/saved/t5.py," in capsys.readouterr().out
