"""The modules of a report as a tree, in order of execution, with what was recorded in each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ampcheck.diagnose.tables import LayerRow
from ampcheck.values.report import Report
from ampcheck.values.trace import ModuleInfo


@dataclass(frozen=True, slots=True)
class Node:
    """A module and where it stands."""

    index: int  #: its place in the tree, read from top to bottom
    path: str
    depth: int
    end: int  #: index of the first module below that is not inside of this one
    module: ModuleInfo | None  #: None for a list of modules, which never runs itself
    row: LayerRow | None  #: None where no operation of its own was recorded
    troubled: int  #: layers inside of it that need a look

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition(".")[2] or "(root)"

    @property
    def kind(self) -> str:
        """Return the class name, '' where it is not known."""
        return self.module.kind if self.module else self.row.kind if self.row else ""


def module_tree(report: Report, rows: Iterable[LayerRow]) -> tuple[Node, ...]:
    """Return every module that ran and every one that holds such, parents before what is inside of them."""
    layers = {row.module: row for row in rows}
    modules = {module.path: module for module in report.low.modules}
    order = _walked(_children([*modules, *layers]), root="" in modules or "" in layers)
    inside = _inside(order)
    nodes = []
    for index, path in enumerate(order):
        held = order[index + 1 : index + 1 + inside[path]]
        troubled = sum(name in layers and layers[name].troubled for name in held)
        found = (modules.get(path), layers.get(path))
        nodes.append(Node(index, path, path.count("."), index + 1 + len(held), *found, troubled))
    return tuple(nodes)


def _children(paths: Iterable[str]) -> dict[str, dict[str, None]]:
    """Return the paths right below each path, in order; lists of modules, which never run, are put in."""
    below: dict[str, dict[str, None]] = {}
    for path in paths:
        child = path
        while child:
            parent = child.rpartition(".")[0]
            siblings = below.setdefault(parent, {})
            if child in siblings:
                break
            siblings[child] = None
            child = parent
    return below


def _walked(below: Mapping[str, Iterable[str]], *, root: bool) -> list[str]:
    """Return the paths from top to bottom; the root, which holds all the others, stands beside them."""
    order = [""] if root else []
    waiting = list(below.get("", ()))[::-1]
    while waiting:
        path = waiting.pop()
        order.append(path)
        waiting += list(below.get(path, ()))[::-1]
    return order


def _inside(order: Iterable[str]) -> dict[str, int]:
    """Return how many modules are inside of each; none for the root, which stands beside them."""
    held = dict.fromkeys(order, 0)
    for path in held:
        parent = path.rpartition(".")[0]
        while parent:
            held[parent] += 1
            parent = parent.rpartition(".")[0]
    return held
