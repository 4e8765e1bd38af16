"""The lines that make what a script holds in half precision: where it is to be made in FP32 instead."""

import ast
import linecache
import re
from collections.abc import Iterator

from ampcheck.diagnose.rules.regions import nodes_of
from ampcheck.values.formats import HALVES
from ampcheck.values.loop import SENT_WEIGHT
from ampcheck.values.maker import CASTS_MODULE, Maker
from ampcheck.values.op_kinds import CASTS
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean, location

#: Layers whose inputs autocast casts.
_LAYERS = frozenset("Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d".split())

#: Lines that are named.
_FEW = 3

#: A line that makes one variable.
_ASSIGNS = re.compile(r"(\s*)(\w+)\s*=[^=]")

#: Casts by what a script calls them.
_NAMES_CAST = re.compile(r"\.(type_as|half|bfloat16)\(|\.to\([^)]*(half|float16|dtype)")

#: Casts to a dtype that is named.
_CASTS = re.compile(r"\.(half|bfloat16)\(|\.to\([^)]*(torch\.half|float16)")

#: A part of a list, as paths name it.
_NUMBERED = re.compile(r"\.(\d+)")

#: Lines that make numbers in half precision: casts, and what is given such a dtype.
_LOWER = re.compile(rf"{_CASTS.pattern}|dtype\s*=\s*torch\.(half|float16|bfloat16)")

#: Writes in place: what is written keeps its dtype.
_WRITES = re.compile(r"[-+*/]=|[a-z]_\(")


def casts_at(file: str, line: int) -> bool:
    """Tell whether the code of a line names casts to half precision, or to a dtype that it does not show."""
    return bool(_NAMES_CAST.search(linecache.getline(file, line)))


def made_anew_at(file: str, line: int) -> str:
    """Return a line that casts what it makes to half precision, '' for one that writes in place, or casts nothing."""
    writes = _WRITES.search(linecache.getline(file, line))
    return location(file, line) if casts_at(file, line) and not writes else ""


def only_cast(file: str) -> int:
    """Return the one line of a file that names a cast to half precision; 0 where there are none or several."""
    lines = [number for number, text in enumerate(linecache.getlines(file), 1) if _CASTS.search(text)]
    return lines[0] if len(lines) == 1 else 0


def read_again(file: str, made: int, line: int) -> list[int]:
    """Return the lines of a block, beside one of them, that read what a line above them in that block makes."""
    lines = linecache.getlines(file)
    begin = _ASSIGNS.match(lines[made - 1]) if 0 < made <= len(lines) else None
    if begin is None:
        return []
    name, found = re.compile(rf"\b{begin[2]}\b"), []
    for number, text in enumerate(lines[made:], made + 1):
        inner = len(text) - len(text.lstrip()) >= len(begin[1])
        if text.strip() and (not inner or ((match := _ASSIGNS.match(text)) and match[2] == begin[2])):
            break
        if number != line and name.search(text.partition("#")[0]):
            found.append(number)
    return found


def before_cast(file: str, line: int, cast: str) -> str:
    """Return that a line reads numbers as they were before a cast, as others do whose products cast again; or ''."""
    more = read_again(file, int(cast.rpartition(":")[2]), line) if cast else []
    also = f"; the same at line {' and '.join(map(str, more))}" if 0 < len(more) <= _FEW else ""
    return f", before the cast at {cast}{also}" if cast else ""


def lowers(file: str) -> list[int]:
    """Return the lines of a file that make numbers in half precision, but for regions of autocast, and comments."""
    code = enumerate((text.partition("#")[0] for text in linecache.getlines(file)), 1)
    return [number for number, text in code if _LOWER.search(text) and "autocast" not in text]


def maker_of(report: Report, name: str) -> Maker | None:
    """Return what makes a tensor of this name, or what holds it."""
    known = {maker.name: maker for maker in report.makers}
    parts = reversed(name.partition("[")[0].split("."))
    return next((known[part] for part in parts if part in known), None)


def module_cast(report: Report) -> Maker | None:
    """Return the one line that casts a module to half precision."""
    return next((maker for maker in report.makers if maker.name == CASTS_MODULE), None)


def changed_at(report: Report, place: str) -> Maker | None:
    """Return what makes the tensor that a line writes into, where that is one."""
    found = [maker for maker in report.makers if place and place in maker.changed]
    return found[0] if len(found) == 1 else None


def made_in_fp32(report: Report, place: str) -> str:
    """Return what to do where a line writes in place: the tensor keeps its dtype, whatever is added to it."""
    maker = changed_at(report, place)
    if maker is None:
        return "# where the tensor that this line changes is made: dtype=torch.float32"
    return _wide(maker, clean(maker.name))


def states_at(report: Report, origin: Site) -> Iterator[str]:
    """Yield how the state that a line writes is made in FP32, and others of its module if a difference shows the loss.

    A variance is one, of a mean of squares and the square of a mean: with one of these as it is, it is no better.
    """
    yield made_in_fp32(report, origin.location)
    if any(jump.dropped == origin and jump.site.op in {"sub", "rsub"} for jump in report.error_jumps):
        alike = (site for site in report.low.sites if site._replace(line=origin.line) == origin != site)
        yield from (
            made_in_fp32(report, site.location) for site in alike if changed_at(report, site.location)
        )


def _wide(maker: Maker, held: str, anew: str = "") -> str:
    """Return how the line that makes a tensor is to make it in FP32, and the one that casts it `anew`."""
    makes = (maker.location,) if casts_at(maker.file, maker.line) else ()
    casts = " and ".join(dict.fromkeys(one for one in (*makes, *maker.cast, anew) if one))
    if makes or maker.location in maker.cast:
        return f"# {casts}: {held} without the cast to half precision"
    again = f"; {casts} without the cast" if casts else ""
    return f"# {maker.location}, where {held} is made: dtype=torch.float32{again}"


def held_in_fp32(report: Report, name: str, shown: str = "", *, anew: str = "", alone: bool = False) -> str:
    """Return how a state is held in FP32, and not cast `anew` at a line.

    It may be held `alone`, where it is the only one of a module that is cast as a whole.
    """
    if name.startswith(SENT_WEIGHT):
        return "# on this line: send the weights in FP32, or in half precision what has changed of them"
    maker = maker_of(report, name)
    if maker is None:
        cast = module_cast(report)
        if anew:
            return f"# where {shown or name} is made, and {anew}: without the cast to half precision"
        if cast is not None:
            return f"# {cast.location} casts a module to half precision: keep {shown or name} in FP32 there"
        return f"# where {shown or name} is made: dtype=torch.float32"
    parts = name.partition("[")[0].split(".")
    last = max(at for at, part in enumerate(parts) if part == maker.name)  # what it holds is made with it
    held, inner = ".".join(parts[: last + 1]), ".".join(parts[last + 1 :])
    if inner and alone and not anew:
        at = " and ".join(maker.cast) or maker.location
        part = _NUMBERED.sub(r"[\1]", f"{held}.{inner}")
        return f"{part}.data = {part}.data.float()  # once the model is made: {at} casts the whole {held}"
    return _wide(maker, held, anew)


def is_layer(report: Report, path: str) -> bool:
    """Tell whether a module is a layer of torch's that autocast casts the input of."""
    return any(one.path == path and one.kind in _LAYERS for one in report.low.modules)


def computed_by_class(report: Report, origin: Site) -> str:
    """Return the lines of an operation's class at which its forward computes in half precision, '' for none."""
    classes = [
        one for one in nodes_of("".join(linecache.getlines(origin.file))) if isinstance(one, ast.ClassDef)
    ]
    spans = [(one.lineno, one.end_lineno or 0) for one in classes]
    inside = [(first, last) for first, last in spans if first <= origin.line <= last]
    lines = {
        site.line
        for site in report.low.sites
        if site.phase is Phase.FORWARD and site.dtype in HALVES and site.op not in CASTS
        if site.file == origin.file and any(first <= site.line <= last for first, last in inside)
    }
    return " and ".join(location(origin.file, line) for line in sorted(lines)[:_FEW])
