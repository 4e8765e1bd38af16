"""What a model may be given: Python for the arguments of its forward, the most likely first."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ampcheck.targets.scope import parameters_of

#: Methods of mappings: what is looked up by them need not be there.
_OF_DICTS = frozenset({"keys", "items", "get", "pop", "update", "copy"})
#: Lengths of sequences and sides of pictures that are tried, in turn.
LENGTH, SIDES = 16, (32, 28, 64, 16, 224, 96, 128, 299)
TOKENS = (
    r"(^|_)ids?$|^idx$|token(?!_type)|^src$|^tgt$|^trg$|^words?$|^text$|^captions?$|^sequences?$|^prompts?$"
)
TIMES = r"^t$|^ts$|time|^sigmas?$|^steps?$|noise_level|^timesteps?$"
MASKS = r"mask|padding"
LENGTHS = r"len(gth)?s?$"
LABELS = r"^labels?$|^targets?$|^y$|^cond(ition)?$|^cls$|class(es)?$|^c$"
STATES = r"^h(idden)?(_state|x)?$|^states?$|^hx$|^hc$|^memory$|^cache$"
PICTURES = r"im(a)?ge?s?|pixel|^x$|sample|frames?|video|^obs|noise|latent|^z$|input"
#: Modules that say what enters a model.
_ENTRIES = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.RNNBase, nn.ConvTranspose2d)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a forward says of one of its arguments."""

    name: str
    required: bool
    annotation: str = ""
    dimensions: int | None = None  #: how many its shape is unpacked into
    whole: bool = False  #: the text says that it holds whole numbers
    attributes: tuple[str, ...] = ()  #: what is read of it that a tensor does not have: `data.edge_index`
    keys: tuple[str, ...] = ()  #: what is looked up in it: `batch["image"]`

    @property
    def parts(self) -> tuple[str, ...]:
        """Return what it is made of, where it is no tensor."""
        return self.attributes or self.keys

    def of_parts(self, texts: tuple[str, ...]) -> str:
        """Return Python for it, from that for its parts."""
        if self.keys and not self.attributes:
            return f"{{{', '.join(f'{key!r}: {text}' for key, text in zip(self.keys, texts, strict=True))}}}"
        pairs = zip(self.attributes, texts, strict=True)
        return f"SimpleNamespace({', '.join(f'{name}={text}' for name, text in pairs)})"


def asked(forward: Any) -> list[Asked]:
    """Return what a forward asks for, in order; without those that take what is left."""
    text = _text(forward)
    unpacked, doc = _unpacked(text), inspect.getdoc(forward) or ""
    found = []
    for p in (parameters_of(forward) or {}).values():
        if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD}:
            continue
        shown = re.search(rf"^\s*{re.escape(p.name)}\b[^\n]*", doc, re.MULTILINE)
        line = shown[0] if shown else ""
        shape = re.search(r"[(\[]([^)\]]*\b(?:batch|B|N|bs)\b[^)\]]*)[)\]]", line)
        counted = len([part for part in shape[1].split(",") if part.strip()]) if shape else None
        annotation = "" if p.annotation is p.empty else str(p.annotation)
        integers = "Long" in annotation or "Int" in annotation
        whole = integers or bool(re.search(r"\bint|token|index|indices", line))
        required, size = p.default is p.empty, unpacked.get(p.name, counted)
        found.append(Asked(p.name, required, annotation, size, whole, *_read_of(p.name, text)))
    return found


def _read_of(name: str, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the attributes and the keys by which a forward takes an argument apart."""
    attributes: dict[str, None] = {}
    keys: dict[str, None] = {}
    parts = (node for node in ast.walk(_parsed(text)) if isinstance(node, ast.Attribute | ast.Subscript))
    for node in sorted(parts, key=lambda node: (node.lineno, node.col_offset)):
        if not isinstance(node.value, ast.Name) or node.value.id != name:
            continue
        if isinstance(node, ast.Attribute):
            own = hasattr(torch.Tensor, node.attr) or node.attr in _OF_DICTS
            attributes |= {} if own else {node.attr: None}
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            keys[node.slice.value] = None
    return tuple(attributes), tuple(keys)


def _text(forward: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(forward))
    except (OSError, TypeError):
        return ""


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _unpacked(text: str) -> dict[str, int]:
    """Return into how many sizes the shape of each argument is unpacked: `b, c, h, w = x.shape`."""
    found: dict[str, int] = {}
    for node in ast.walk(_parsed(text)):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        value = node.value.func if isinstance(node.value, ast.Call) else node.value
        if (
            isinstance(value, ast.Attribute)
            and value.attr in {"shape", "size"}
            and isinstance(value.value, ast.Name)
        ):
            found.setdefault(value.value.id, len(node.targets[0].elts))
    return found


class Shapes:
    """The sizes that a model's parts and its constructor speak of."""

    def __init__(self, model: nn.Module, given: Mapping[str, Any]) -> None:
        """Look at a model; `given` is what its constructor was given, with the defaults."""
        self.layers = [part for part in model.modules() if isinstance(part, _ENTRIES)]
        self._given = {name.lower(): value for name, value in given.items()}
        self._model = model

    @property
    def said(self) -> list[tuple[str, int]]:
        """Return the numbers that the constructor was given, by name."""
        return [(name, value) for name, value in self._given.items() if _is_size(value)]

    @property
    def vocabularies(self) -> list[int]:
        """Return how many indices the embeddings take, the largest first."""
        tables = {part.num_embeddings for part in self.layers if isinstance(part, nn.Embedding)}
        return sorted(tables, reverse=True)

    def channels(self, kind: type) -> list[int]:
        """Return how many channels may come in: what the first layer of a kind takes, and what was asked for."""
        first: list[Any] = [part.in_channels for part in self.layers if isinstance(part, kind)][:1]
        said = [v for k, v in self.said if re.search(r"chan|^nc$|^in_|input_dim", k)]
        return list(dict.fromkeys([*said, *first]))

    def widths(self) -> list[int]:
        """Return how wide vectors may be that come in, in the order of the layers."""
        found: list[int] = []
        for part in self._model.modules():
            if isinstance(part, nn.Linear):
                found.append(part.in_features)
            elif isinstance(part, nn.RNNBase):
                found.append(part.input_size)
            elif isinstance(part, nn.MultiheadAttention):
                found += [part.kdim, part.embed_dim]
            elif isinstance(part, nn.LayerNorm):
                found.append(part.normalized_shape[-1])
        return list(dict.fromkeys(found))[:6]

    def named(self, name: str) -> list[Any]:
        """Return what the constructor was given under a name like that of an argument: obs and obs_dim."""
        stem = name.lower().rstrip("s")
        alike = [v for k, v in self._given.items() if k.startswith(stem) or (len(stem) > 2 and stem in k)]  # noqa: PLR2004
        if stem in {"z", "noise", "latent"}:
            alike += [v for k, v in self._given.items() if re.search(r"latent|^nz$|z_dim|noise", k)]
        if stem in {"encoder_hidden_state", "context", "cond", "condition", "text", "text_emb"}:
            alike = [v for k, v in self._given.items() if re.search(r"context|cond|cross|text", k)] + alike
        return [value for value in alike if _is_size(value) or _is_shape(value)]

    @property
    def side(self) -> list[int]:
        """Return how large pictures may be: as asked for, or as usual."""
        said = [v for k, v in self.said if re.search(r"(size|resolution|side|height|img)", k)]
        return list(dict.fromkeys([*(v for v in said if v >= 8), *SIDES]))  # noqa: PLR2004

    def has(self, *kinds: type) -> bool:
        """Tell whether the model has a layer of a kind."""
        return any(isinstance(part, kinds) for part in self.layers)

    @property
    def first(self) -> nn.Module | None:
        """Return the first layer that says what comes in."""
        return next(iter(self.layers), None)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and all(map(_is_size, value))


def candidates(one: Asked, shapes: Shapes) -> list[str]:
    """Return Python for an argument, the most likely first; `batch_size` is how many samples there are."""
    name = one.name.lower()
    said = list(_by_name(name, one, shapes))
    rest = list(_numbers(one, shapes))
    fits = [text for text in dict.fromkeys([*said, *rest]) if _dimensions(text) in {None, one.dimensions}]
    return fits if one.dimensions else list(dict.fromkeys([*said, *rest]))


def _by_name(name: str, one: Asked, shapes: Shapes) -> Iterator[str]:
    words = [f"torch.randint(0, {size}, (batch_size, {LENGTH}))" for size in shapes.vocabularies]
    if re.search(MASKS, name):
        yield f"torch.ones(batch_size, {LENGTH}, dtype=torch.bool)"
        yield f"torch.ones(batch_size, {LENGTH}, dtype=torch.long)"
        yield f"torch.ones(batch_size, {LENGTH})"
    elif re.search(TIMES, name):
        yield "torch.randint(0, 1000, (batch_size,))"
        yield "torch.rand(batch_size)"
        yield "torch.rand(batch_size, 1)"
    elif re.search(LENGTHS, name):
        yield f"torch.full((batch_size,), {LENGTH})"
    elif re.search(LABELS, name) and shapes.vocabularies:
        yield from (f"torch.randint(0, {size}, (batch_size,))" for size in reversed(shapes.vocabularies))
    elif re.search(STATES, name):
        yield "None"
    if words and (re.search(TOKENS, name) or one.whole):
        yield from words
    if words and isinstance(shapes.first, nn.Embedding):
        yield from words
        yield from (f"torch.randint(0, {size}, (batch_size,))" for size in shapes.vocabularies)


def _numbers(one: Asked, shapes: Shapes) -> Iterator[str]:
    """Yield tensors of numbers: in the shape that the constructor says, then as the layers say."""
    for value in shapes.named(one.name):
        if _is_shape(value):
            yield f"torch.randn(batch_size, {', '.join(map(str, value))})"
        else:
            yield f"torch.randn(batch_size, {value})"
            yield f"torch.randn(batch_size, {LENGTH}, {value})"
            yield f"torch.randn(batch_size, {value}, 1, 1)"
    flat = list(_flat(shapes))
    deep = list(_pictures(one, shapes))
    of_pictures = isinstance(shapes.first, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    picture_first = of_pictures and re.search(PICTURES, one.name.lower())
    yield from ([*deep, *flat] if picture_first else [*flat[:3], *deep, *flat[3:]])


def _pictures(one: Asked, shapes: Shapes) -> Iterator[str]:
    if one.dimensions == 5 and shapes.has(nn.Conv2d):  # noqa: PLR2004  # batch, time, channels, height, width
        yield from (f"torch.randn(batch_size, 4, {c}, 16, 16)" for c in shapes.channels(nn.Conv2d))
    if shapes.has(nn.Conv2d):
        pairs = itertools.product(shapes.side, shapes.channels(nn.Conv2d))
        yield from (f"torch.randn(batch_size, {c}, {side}, {side})" for side, c in pairs)
    if shapes.has(nn.ConvTranspose2d):
        yield from (f"torch.randn(batch_size, {c}, 1, 1)" for c in shapes.channels(nn.ConvTranspose2d))
    if shapes.has(nn.Conv3d):
        yield from (f"torch.randn(batch_size, {c}, 8, 32, 32)" for c in shapes.channels(nn.Conv3d))
    if shapes.has(nn.Conv1d):
        yield from (
            f"torch.randn(batch_size, {c}, {n})" for c in shapes.channels(nn.Conv1d) for n in (64, 1024, 16)
        )


def _flat(shapes: Shapes) -> Iterator[str]:
    for width in shapes.widths():
        sequence = f"torch.randn(batch_size, {LENGTH}, {width})"
        vector = f"torch.randn(batch_size, {width})"
        yield from ([sequence, vector] if isinstance(shapes.first, nn.RNNBase) else [vector, sequence])
    if not shapes.layers:
        yield "torch.randn(batch_size, 64)"
        yield "torch.randn(batch_size, 3, 32, 32)"


def _dimensions(text: str) -> int | None:
    """Return how many sizes a tensor has, None for what is none."""
    if text == "None":
        return None
    shape = re.search(r"batch_size[^)]*", text)
    if shape is None:
        return None
    return len([part for part in shape[0].split("dtype")[0].split(",") if part.strip()])


def settings(kind: type, text: str, value: Any) -> dict[str, Any]:
    """Return what a constructor was given by a call such as `Net(depth=2)`, with its defaults; `value` evaluates."""
    try:
        signature = inspect.signature(kind)
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            return {}
        places = [value(ast.unparse(arg)) for arg in call.args]
        named = {k.arg: value(ast.unparse(k.value)) for k in call.keywords if k.arg}
        bound = signature.bind(*places, **named)
        bound.apply_defaults()
    except Exception:  # noqa: BLE001  # what a constructor is given only helps to guess
        return {}
    found = dict(bound.arguments)
    for one in list(found.values()):  # a configuration says what it holds
        found |= {k: v for k, v in getattr(one, "__dict__", {}).items() if _is_size(v) or _is_shape(v)}
    return found
