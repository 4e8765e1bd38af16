"""The files of a bench: reports in a folder, partial results beside them, and the folder's index."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ampcheck.bench import saved
from ampcheck.bench.compare import Change
from ampcheck.bench.markdown import to_markdown
from ampcheck.bench.page import to_html
from ampcheck.bench.pictures import pictures
from ampcheck.bench.result import BASE, Bench
from ampcheck.bench.table import records
from ampcheck.bench.verdicts import verdict
from ampcheck.errors import ReportError
from ampcheck.renderers.markup import inline
from ampcheck.saved.report_json import write
from ampcheck.targets.spec import ZOOS

_TITLE = re.compile(r"^# +(.+)$", re.MULTILINE)


def write_all(folder: Path, name: str, bench: Bench, changes: Sequence[Change] = ()) -> tuple[Path, ...]:
    """Write a bench in every format; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    bench = saved.from_json(saved.to_json(bench))  # what is shown is what is saved, to the digit
    found = texts(name, bench, changes)
    for file, text in found.items():
        write(folder / file, text)
    return tuple(folder / file for file in found if not file.endswith(".svg"))


def texts(name: str, bench: Bench, changes: Sequence[Change] = ()) -> dict[str, str]:
    """Return the files of a report by name: a bench in every format, and its charts."""
    drawn = pictures(bench)
    links = [(picture.case, picture.title, f"{name}-{picture.suffix}.svg") for picture in drawn]
    return {
        f"{name}.md": to_markdown(bench, changes, links),
        f"{name}.html": to_html(bench, changes),
        f"{name}.csv": saved.to_csv(records(bench)),
        f"{name}.json": saved.to_json(bench),
    } | {f"{name}-{picture.suffix}.svg": picture.text for picture in drawn}


def report_name(target: str) -> str:
    """Return a file name for a target.

    >>> report_name("torchvision:resnet18"), report_name("a/b/net.py:Net")
    ('resnet18', 'net_Net')
    """
    source, _, name = target.rpartition(":")
    stem = Path(source or name).stem
    parts = [name] if source in ZOOS else [stem, name] if source else [stem]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "_".join(parts)) or "bench"


def partial(folder: Path, name: str) -> Path:
    """Return where the results of a bench lie until it is complete."""
    return folder / f"{name}.partial.json"


def resumed(folder: Path, name: str, empty: Bench) -> Bench:
    """Return the partial results of the same request, else its report, else the empty bench."""
    path, report = partial(folder, name), folder / f"{name}.json"
    if not path.is_file():
        found = saved.read(report) if report.is_file() else empty
        return replace(found, command=empty.command) if found.fingerprint == empty.fingerprint else empty
    found = saved.read(path)
    if found.fingerprint != empty.fingerprint:
        words = "repeat the options of that bench, or leave --resume out"
        raise ReportError(f"the partial results of another bench are in {str(path)!r}; {words}")
    return replace(found, command=empty.command)


def write_index(folder: Path) -> Path:
    """Write README.md: every report of a folder, benches with what they found."""
    path = folder / "README.md"
    write(path, index(folder))
    return path


def index(folder: Path) -> str:
    """Return the index of a folder of reports."""
    out = [
        "# Reports",
        "",
        f"Written by `ampcheck bench --index {folder.name}`. Every report says how it was made.",
        "",
    ]
    benches = {file.stem: _bench(file) for file in sorted(folder.rglob("*.json"))}
    found = {stem: bench for stem, bench in benches.items() if bench is not None}
    for file in sorted(folder.rglob("*.md")):
        if file.name == "README.md":
            continue
        title = _TITLE.search(file.read_text(encoding="utf-8"))
        link = file.relative_to(folder).as_posix()
        out.append(f"- [{title[1] if title else file.stem}]({link})" + _formats(folder, file))
        bench = found.get(file.stem)
        out += [f"  - {text}" for text in _findings(bench)] if bench is not None else []
    return "\n".join(out) + "\n"


def _bench(file: Path) -> Bench | None:
    try:
        return saved.read(file)
    except ReportError:
        return None  # another tool's


def _formats(folder: Path, file: Path) -> str:
    beside = [file.with_suffix(suffix) for suffix in (".html", ".csv", ".json")]
    links = [
        f"[{other.suffix[1:]}]({other.relative_to(folder).as_posix()})" for other in beside if other.is_file()
    ]
    return f" ({', '.join(links)})" if links else ""


def _findings(bench: Bench) -> list[str]:
    found = []
    for case in bench.cases:
        rows = [row for row in case.rows if row.precision != BASE]
        words = [f"{row.precision}: {inline(verdict(bench, case, row))}" for row in rows]
        found.append(f"{inline(case.key)}: {'; '.join(words)}")
    return found
