"""The reports of a bench: Markdown that parses, a page that loads nothing, charts whose parts add up, an index."""

import base64
import dataclasses
import hashlib
import html.parser
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from test_bench_result import example

from ampcheck.bench import files, saved, svg, views
from ampcheck.bench.compare import compare
from ampcheck.bench.markdown import to_markdown, to_text
from ampcheck.bench.page import to_html
from ampcheck.bench.pictures import pictures
from ampcheck.bench.result import Bench, Case, Reason, Row, Time
from ampcheck.bench.shapes import PLOT, Axis
from ampcheck.bench.table import lines, records
from ampcheck.errors import ReportError
from ampcheck.renderers.markup import inline

NASTY = '</style><script>alert(1)</script>|`*[x](javascript:1)" onload="x\x1b[31m\u202e'


def nasty():
    bench = example()
    case = bench.cases[0]
    row = dataclasses.replace(case.rows[0], message=NASTY)
    reason = Reason("casts", NASTY, NASTY, NASTY)
    return Bench(
        NASTY,
        (dataclasses.replace(case, rows=(row, *case.rows[1:]), notes=(NASTY,), reasons=(reason,)),),
        NASTY,
        notes=(NASTY,),
        environment={NASTY: NASTY},
    )


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "bench", [example(), nasty(), Bench("empty"), Bench("case", (Case(1, rows=(Row("fp32"),)),))]
)
def test_the_page_is_well_formed_and_loads_nothing(bench):
    text = to_html(bench)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not {"script", "img", "iframe", "object", "a"} & set(tags.seen)
    named = [
        entry
        for entry in tags.attributes
        if entry[1] in {"style", "src", "href"} or entry[1].startswith("on")
    ]
    assert [entry[:2] for entry in named] == [("link", "href")]
    assert '<link rel="icon" href="data:,">' in text, "or a browser asks for one"
    assert "http:" not in text
    assert "https:" not in text
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert "default-src 'none'; " in html.unescape(text)
    assert f"; style-src 'sha256-{digest}'\"" in html.unescape(text)


def test_the_charts_of_a_report_are_files_that_stand_alone(tmp_path):
    bench = example()
    files.write_all(tmp_path, "net", bench)
    text = (tmp_path / "net.md").read_text()
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == ["net-1-memory.svg", "net-1-speed.svg", "net-1-training.svg"]
    for name in drawn:
        root = ET.fromstring((tmp_path / name).read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}style") is not None
        assert f"]({name})" in text


def test_a_sweep_is_one_table_and_a_line_against_the_batch_size():
    bench = example()
    case = dataclasses.replace(bench.cases[0], batch_size=32)
    sweep = dataclasses.replace(bench, cases=(*bench.cases, case))
    names, lines_ = views.pivot(sweep, "memory_ratio")
    assert names == ["fp32", "fp16", "amp"]
    assert lines_ == [("batch 8", "1.00", "–", "0.75"), ("batch 32", "1.00", "–", "0.75")]
    assert views.sweep(bench) == []
    text = to_text(sweep)
    assert "net.py:<script> · 2 cases" in text
    assert "batch 8: fp16: does not run" in text
    (chart,) = [picture for picture in pictures(sweep) if not picture.case]
    assert chart.title == "Speed-up against batch size, measured on CPU"
    line = ET.fromstring(chart.text).find("{http://www.w3.org/2000/svg}polyline")
    assert len(line.get("points").split()) == 2
    frame = views.frame(sweep)
    assert list(frame.precision) == names * 2
    assert frame.memory_ratio.tolist()[2] == 0.75


def test_the_articles_layout_is_taken_from_the_rows():
    titles, found = views.article(example())
    rows = {line[0]: dict(zip(titles, line, strict=True)) for line in found}
    assert titles == [
        "precision", "training loss", "CUDA MiB, predicted", "× memory", "ms a step here", "× speed here",
    ]  # fmt: skip
    assert rows["amp"]["× memory"] == "0.75"
    assert rows["fp32"]["training loss"] == "1.01"
    assert rows["fp16"]["training loss"] == "fails: 3 of 3 runs"
    assert [*rows["fp16"].values()][2:] == ["–"] * 4
    heads = [re.split(r" *\| *", line)[1:-1] for line in to_markdown(example()).splitlines()]
    assert titles in heads
    gpu = dataclasses.replace(example(), environment={"device": "NVIDIA H100"})
    assert views.article(gpu)[0] == [
        "precision", "training loss", "ms a step here", "× speed here", "CUDA MiB", "× memory",
    ]  # fmt: skip
    two = dataclasses.replace(gpu, cases=gpu.cases * 2)
    assert views.article(two)[0][0] == "case"


def test_throughput_is_what_a_person_computes_from_the_time():
    bench = example()
    case = bench.cases[0]
    base = case.rows[0]
    timed = dataclasses.replace(base, time=Time((0.5, 0.5), 1, joules=100.0), flops=4 * 10**12)
    case = dataclasses.replace(case, rows=(timed,), tokens=1000)
    gpu = dataclasses.replace(
        bench, cases=(case,), environment={"device": "NVIDIA H100 80GB HBM3"}, epoch=960, price=3.0
    )
    titles, (row,) = views.work(gpu, case)
    assert dict(zip(titles, row, strict=True)) == {
        "precision": "fp32",
        "samples/s": "16",  # 8 in half a second
        "tokens/s": "2,000",
        "TFLOP/s": "8",
        "MFU": "12 %",  # of 66.9
        "J a step": "100",
        "W on average": "200",
        "epoch, min": "1",  # 960 at 16 a second
        "cost of an epoch": "0.05",  # a sixtieth of 3
    }
    for text in (to_text(gpu), to_markdown(gpu), to_html(gpu)):
        assert "on NVIDIA H100" in text
        assert "cost of an epoch" in text
    assert "Throughput on this CPU" in to_markdown(bench)
    assert "Throughput" not in to_markdown(
        dataclasses.replace(bench, cases=(dataclasses.replace(case, rows=(Row("fp32"),)),))
    )


def test_the_bars_of_a_memory_chart_are_as_long_as_the_peak_says():
    case = example().cases[0]
    bars = [
        node
        for node in ET.fromstring(svg.memory(case))
        if node.tag == "rect" and float(node.get("height")) == 18
    ]
    first = case.rows[0].memory.predicted
    lengths = [float(node.get("width")) for node in bars[: len(first.roles)]]
    assert sum(lengths) == pytest.approx(PLOT, abs=0.2)
    assert lengths[0] / lengths[1] == pytest.approx(1000 / 3000, rel=0.01)


def test_an_axis_in_powers_puts_one_half_as_far_from_one_as_two():
    axis = Axis(0.25, 4, 0, 100, logarithmic=True)
    assert (axis(0.5), axis(1), axis(2)) == pytest.approx((25 + 0, 50, 75))


@pytest.mark.parametrize("bench", [example(), nasty()])
def test_markdown_has_one_table_row_a_precision_and_no_html(bench):
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(to_markdown(bench))
    inline = [child for token in tokens for child in token.children or ()]
    assert not [
        token for token in [*tokens, *inline] if token.type in {"html_block", "html_inline", "link_open"}
    ]
    widths = {}
    for token in tokens:
        if token.type == "table_open":
            table = []
        elif token.type == "tr_open":
            table.append(0)
        elif token.type in {"th_open", "td_open"}:
            table[-1] += 1
        elif token.type == "table_close":
            widths[len(widths)] = table
    assert len(widths[0]) == len(widths[1]) == 1 + 3
    assert all(len(set(table)) == 1 for table in widths.values())


def test_every_format_says_the_same():
    bench = example()
    found = {record["precision"]: record for record in records(bench)}
    for name, record in found.items():
        for text in (to_markdown(bench), to_html(bench), to_text(bench, 200)):
            assert name in text
            assert record["verdict"] in text
    assert len(saved.to_csv(records(bench)).splitlines()) == 1 + 3
    assert "diverged" in to_markdown(bench)


@pytest.mark.parametrize("width", [80, 100, 320])
def test_the_terminals_table_fits_and_loses_no_word(width):
    bench = saved.read(Path(__file__).parents[2] / "reports" / "bench" / "vit.json")
    text = to_text(bench, width, "cases")
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for line in lines(bench, bench.cases[0]):
        verdict = line["verdict"].split()
        assert len([word for word in words if word in verdict]) >= len(verdict)
    if width == 320:
        assert all(line["verdict"] in text for line in lines(bench, bench.cases[0])), "there is room for them"


def test_the_terminal_shows_the_largest_batch_and_without_times_the_memory():
    bench = example()
    case = bench.cases[0]
    rows = [dataclasses.replace(row, time=None, largest_batch=12345) for row in case.rows]
    text = to_text(
        dataclasses.replace(bench, cases=(dataclasses.replace(case, rows=tuple(rows), again=None),))
    )
    head = text.splitlines()[1].split("  ")
    assert [word.strip() for word in head if word.strip()][:4] == ["precision", "CUDA MiB", "× CUDA", "fits"]
    assert text.count("12,345") == 3


def test_the_terminal_shows_nothing_that_is_not_visible():
    assert "\x1b" not in to_text(nasty())
    assert "\u202e" not in to_text(nasty())


def test_files_and_index(tmp_path):
    bench = example()
    written = files.write_all(tmp_path / "bench", "net", bench, compare(bench, bench))
    assert [path.suffix for path in written] == [".md", ".html", ".csv", ".json"]
    (tmp_path / "other.md").write_text("# Another report\n")
    (tmp_path / "other.json").write_text(json.dumps({"not": "ours"}))
    path = files.write_index(tmp_path)
    text = path.read_text()
    assert "[Another report](other.md) ([json](other.json))" in text
    assert "(bench/net.md) ([html](bench/net.html), [csv](bench/net.csv), [json](bench/net.json))" in text
    assert "fp16: does not run" in text
    assert files.write_index(tmp_path).read_text() == text, "the index does not list itself"


def test_partial_results_of_another_bench_are_not_gone_on_with(tmp_path):
    path = files.partial(tmp_path, "net")
    empty = dataclasses.replace(Bench("net"), fingerprint="a")
    assert files.resumed(tmp_path, "net", empty) == empty
    path.write_text(saved.to_json(dataclasses.replace(example(), fingerprint="a")))
    assert files.resumed(tmp_path, "net", empty).cases
    path.write_text(saved.to_json(dataclasses.replace(example(), fingerprint="b")))
    with pytest.raises(ReportError, match="partial results of another bench"):
        files.resumed(tmp_path, "net", empty)
    path.rename(tmp_path / "net.json")
    assert files.resumed(tmp_path, "net", empty) == empty, "a report of something else is made anew"


def test_the_readmes_table_is_that_of_the_report():
    root = Path(__file__).parents[2]
    readme = (root / "README.md").read_text(encoding="utf-8")
    table = readme.partition("<!-- bench -->\n")[2].partition("<!-- /bench -->")[0].splitlines()[2:]
    bench = saved.read(root / "reports" / "bench" / "classic_small_loss.json")
    expected = [
        "| {precision} | {memory} MiB | {share} | {training} |".format(
            **line | {"training": inline(line["training"])}
        )
        for line in lines(bench, bench.cases[0])
    ]
    assert table == expected


def test_what_the_readme_claims_of_the_bench_is_in_its_reports():
    root = Path(__file__).parents[2]
    section = (
        (root / "ampcheck" / "manual" / "bench.md").read_text(encoding="utf-8").partition("## Reports\n")[2]
    )
    assert len(section.splitlines()) <= 40
    linked = {path.removeprefix("../../reports/bench/") for path in re.findall(r"\]\(([^)]+)\)", section)}
    assert linked == {
        "classic.md",
        "resnet18.md",
        "vit.md",
        "gpt.md",
        "lstm.md",
        "noise.md",
        "power.md",
        "slowdowns.md",
        "../../reports/gpu.md",
    }
    folder = root / "reports" / "bench"
    claim = re.search(r"no difference measured in (\d+ of \d+) repetitions", " ".join(section.split()))[1]
    assert f"**no difference measured in {claim} repetitions**" in (folder / "noise.md").read_text("utf-8")
    for name in ("resnet18", "vit", "gpt", "lstm"):
        bench = saved.read(folder / f"{name}.json")
        assert len({case.batch_size for case in bench.cases}) == 2
        assert all(case.parts == ("time", "memory", "accuracy", "training") for case in bench.cases)
        assert all(row.courses and row.one_step and row.memory for case in bench.cases for row in case.rows)
    steps, seeds = map(int, re.search(r"accuracy after (\d+) steps, (\d+) seeds", section).groups())
    bench = saved.read(folder / "classic_small_loss.json")
    assert f"--steps {steps} " in bench.command
    assert all(len(row.courses) == seeds for row in bench.cases[0].rows)


def test_every_committed_report_is_what_its_json_says():
    folder = Path(__file__).parents[2] / "reports" / "bench"
    found = list(folder.glob("*.json"))
    assert found
    for path in found:
        bench = saved.read(path)
        for file, text in files.texts(path.stem, bench).items():
            assert (folder / file).read_text(encoding="utf-8") == text, file
        assert not bench.interrupted
