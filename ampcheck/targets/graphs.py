"""What graph networks are given: nodes, edges, and the graph of each node; as many graphs as there are samples."""

import re
from collections.abc import Iterable, Iterator

from torch import nn

from ampcheck.targets.inputs import LENGTH, Asked, Shapes, candidates

#: Nodes and edges of one graph.
NODES, EDGES = LENGTH, 4 * LENGTH
_NODES, _EDGES = f"{NODES} * batch_size", f"{EDGES} * batch_size"
_INDEX = re.compile(r"^edge_(index|idx|list)|^edges?$")
_MATRIX = re.compile(r"^adj")
_OF_EDGES = re.compile(r"^edge_|^e$|^bond")
_OF_NODES = re.compile(r"^(x|h|z|feats?|features|inputs?|node\w*|atom\w*)$")
#: What is one thing by its name.
_PLAIN = {
    "batch": f"torch.arange(batch_size).repeat_interleave({NODES})",
    "num_nodes": _NODES,
    "num_graphs": "batch_size",
    "pos": f"torch.randn({_NODES}, 3)",
}


def is_graph(names: Iterable[str]) -> bool:
    """Tell whether arguments of these names are those of a graph network."""
    return any(_INDEX.search(name) or _MATRIX.search(name) for name in names)


def of_graph(one: Asked, shapes: Shapes) -> list[str]:
    """Return Python for an argument of a graph network, the most likely first."""
    name = one.name.lower()
    if _INDEX.search(name):
        first = f"{NODES} * torch.arange(batch_size).repeat_interleave({EDGES})"
        return [f"torch.randint(0, {NODES}, (2, {_EDGES})) + {first}"]
    if _MATRIX.search(name):
        return [f"torch.rand({_NODES}, {_NODES}).softmax(1)", f"torch.rand(batch_size, {NODES}, {NODES})"]
    if name in _PLAIN:
        return [_PLAIN[name]]
    if _OF_EDGES.search(name):
        plain = f"torch.rand({_EDGES})"
        deep = list(_features(_EDGES, shapes))
        return [plain, *deep] if "weight" in name else [*deep, plain]
    if _OF_NODES.search(name):
        return [
            *_features(_NODES, shapes),
            *(f"torch.randn(batch_size, {NODES}, {w})" for w in _sizes(shapes)),
        ]
    return candidates(one, shapes)


def _features(many: str, shapes: Shapes) -> Iterator[str]:
    """Yield what each node or edge has: an index where the model begins with embeddings, else numbers."""
    whole = [f"torch.randint(0, {size}, ({many},))" for size in reversed(shapes.vocabularies)]
    numbers = [f"torch.randn({many}, {width})" for width in _sizes(shapes)]
    yield from ([*whole, *numbers] if isinstance(shapes.first, nn.Embedding) else [*numbers, *whole])


def _sizes(shapes: Shapes) -> list[int]:
    """Return how wide the features may be: as the layers say, then as the constructor was given."""
    return list(dict.fromkeys([*shapes.widths(), *(value for _, value in shapes.said)]))


def many(first: int, samples: int) -> str:
    """Return how many results there are, as Python: one for each sample, node or edge."""
    return {NODES * samples: _NODES, EDGES * samples: _EDGES}.get(first, "batch_size")
