"""A batch and a loss that were worked out: Python that makes them, tried on the model before anybody relies on it."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ampcheck.targets.graphs import is_graph, many, of_graph
from ampcheck.targets.inputs import Asked, Shapes, candidates
from ampcheck.targets.losses import LABEL_KEYS, own_loss
from ampcheck.targets.trying import SAMPLES, Tried, all_values, value_of
from ampcheck.targets.usual_losses import CLASSES, loss_for, number_of_classes, places, prediction_in


@dataclass(frozen=True, slots=True)
class Draft:
    """Python for what the user has not written."""

    model: str  #: an expression
    origin: str = ""  #: where it was taken from
    lines: tuple[str, ...] = ()  #: of batch(), before what it returns
    batch: str = ""  #: what batch() returns
    unpack: str = ""  #: what loss() takes a batch apart into, '' where it does not
    loss: str = ""  #: what loss() returns
    own_loss: bool = False  #: it is the one that the model computes itself
    shown: str = ""  #: what the loss is, in words

    def source(self, *, head: str = "") -> str:
        """Return the text of a file that defines model, batch and loss."""
        taken = f"    # as in {self.origin}\n" if self.origin else ""
        body = "".join(f"    {line}\n" for line in self.lines)
        unpack = f"    {self.unpack} = batch\n" if self.unpack else ""
        return (
            f"{head}def model():\n{taken}    return {self.model}\n\n\n"
            f"def batch(batch_size=8):\n{body}    return {self.batch}\n\n\n"
            f"def loss(model, batch):\n{unpack}    return {self.loss}\n"
        )


class NotFound(Exception):  # noqa: N818  # it is no error of anybody's
    """No batch was found that a model takes; says what it asks for, and what was tried last."""

    def __init__(self, asks: Sequence[Asked], tries: int, last: str) -> None:
        """Keep what is said."""
        names = ", ".join(one.name for one in asks if one.required) or "nothing by name"
        super().__init__(
            f"no batch could be worked out for forward({names}): {tries} were tried, and the last: {last}"
        )


def draft(
    model: nn.Module, empty: Draft, given: Mapping[str, Any], data: Iterable[tuple[str, Any]] = ()
) -> Draft:
    """Return a batch and a loss for a model.

    `given` is what its constructor was given, `data` are data sets with the Python that makes them.
    """
    tried = Tried(model)
    sets = (_from_data(empty, tried, text, one) for text, one in data)
    found = _from_loader(empty, tried) or next(filter(None, sets), None)
    return found or _from_forward(empty, tried, Shapes(model, given))


# -- from a loader or a data set


def _from_loader(empty: Draft, tried: Tried) -> Draft | None:
    """Return a draft from a model that has its own data and its own training step, as Lightning's have."""
    if not hasattr(tried.model, "training_step"):
        return None
    try:
        batch = next(iter(tried.model.train_dataloader()))  # type: ignore[operator]
    except Exception:  # noqa: BLE001  # it has none, or needs more to make one
        return None
    made = _one_batch("next(iter(model().train_dataloader()))", batch)
    return _stepping(replace(empty, batch=made), tried, batch)


def _one_batch(text: str, value: Any) -> str:
    """Return Python for one batch: a list would be several."""
    return f"tuple({text})" if isinstance(value, list) else text


def _stepping(made: Draft, tried: Tried, batch: Any) -> Draft | None:
    """Return a draft whose loss is the model's own training step."""
    output = tried.output(lambda model: model.training_step(batch, 0))
    if output is None or own_loss(output) is None:
        return None
    loss = "model.training_step(batch, 0)" + '["loss"]' * isinstance(output, Mapping)
    return replace(made, loss=loss, own_loss=True, shown="its own training_step")


def _from_data(empty: Draft, tried: Tried, text: str, data: Any) -> Draft | None:
    """Return a draft that takes its samples from a data set of the file; `text` is Python that makes that."""
    try:
        sample = torch.utils.data.default_collate([data[i] for i in range(SAMPLES)])
    except Exception:  # noqa: BLE001  # samples of many sizes, or none
        return None
    lines = (f"data = {text}", "samples = [data[i] for i in range(batch_size)]")
    collated = _one_batch("torch.utils.data.default_collate(samples)", sample)
    made = replace(empty, lines=lines, batch=collated)
    if hasattr(tried.model, "training_step"):
        return _stepping(made, tried, sample)
    if isinstance(sample, Mapping):
        return _named_samples(made, tried, sample)
    items = list(sample) if isinstance(sample, (tuple, list)) else [sample]
    count = sum(one.required for one in tried.asks) or 1
    output = tried.output(lambda model: model(*items[:count])) if len(items) >= count else None
    if output is None:
        return None
    names = [one.name for one in tried.asks][:count]
    call = f"model({', '.join(names)})"
    if own_loss(output) is not None:
        return replace(made, unpack=f"{', '.join(names)}, *_", loss=call, own_loss=True, shown="its own")
    path, prediction = prediction_in(output)
    target = items[count] if len(items) > count else items[0]
    loss = loss_for(prediction, target, f"{call}{path}", "target" if len(items) > count else names[0])
    rest = "*_" if len(items) > count + 1 else ""
    left = [*names, "target", *([rest] if rest else [])] if len(items) > count else names
    unpack = ", ".join(left) if isinstance(sample, (tuple, list)) else names[0]
    return None if loss is None else replace(made, unpack=unpack, loss=loss[0], shown=loss[1])


def _named_samples(made: Draft, tried: Tried, sample: Mapping[str, Any]) -> Draft | None:
    known = {one.name for one in tried.asks}
    keys = [key for key in sample if key in known]
    output = tried.output(lambda model: model(**{key: sample[key] for key in keys})) if keys else None
    if output is None:
        return None
    call = f"model({', '.join(f'{key}=batch[{key!r}]' for key in keys)})"
    if own_loss(output) is not None:
        path = ".loss" if hasattr(output, "loss") else '["loss"]' if isinstance(output, Mapping) else ""
        return replace(made, loss=call + path, own_loss=True, shown="the one that the model computes")
    path, prediction = prediction_in(output)
    label = next((key for key in LABEL_KEYS if key in sample and key not in keys), None)
    if label is None:
        return None
    loss = loss_for(prediction, sample[label], f"{call}{path}", f"batch[{label!r}]")
    return None if loss is None else replace(made, loss=loss[0], shown=loss[1])


# -- from the signature of forward


def _from_forward(empty: Draft, tried: Tried, shapes: Shapes) -> Draft:
    required = [one for one in tried.asks if one.required]
    optional = [one for one in tried.asks if not one.required and _may_be_tensor(one)]
    for wanted in [required, [*required, *optional]] if required and optional else [required or optional[:1]]:
        for texts in _texts(wanted, shapes, _as_stored(tried.model)):
            if tried.over:
                break
            values = {one.name: value_of(text) for one, text in zip(wanted, texts, strict=True)}
            output = tried.output(lambda model, values=values: model(**values))  # type: ignore[misc]
            if output is not None:
                shown = dict(zip((one.name for one in wanted), texts, strict=True))
                shown |= _masks(tried, shown)
                return _with_loss(empty, tried, shapes, shown, output)
    raise NotFound(tried.asks, tried.tries, tried.last)


def _as_stored(model: nn.Module) -> str:
    """Return what follows numbers that go into a model: it may be stored in half precision."""
    dtypes = (p.dtype for p in model.parameters() if p.is_floating_point())
    return {torch.float16: ".half()", torch.bfloat16: ".bfloat16()"}.get(next(dtypes, torch.float32), "")


def _texts(wanted: Sequence[Asked], shapes: Shapes, ending: str) -> Iterator[tuple[str, ...]]:
    """Yield Python for all arguments of a forward, the most likely first; the ending is for random numbers."""
    whole = [one for one in wanted if len(wanted) == 1 and one.parts]
    asks = [Asked(part, required=True) for part in whole[0].parts] if whole else list(wanted)
    find = of_graph if is_graph(one.name for one in asks) else candidates
    drawn = ("torch.randn(", "torch.rand(")
    listed = [[text + ending * text.startswith(drawn) for text in find(one, shapes)] for one in asks]
    for texts in _combined(listed):
        yield (whole[0].of_parts(texts),) if whole else texts


def _masks(tried: Tried, inputs: dict[str, str]) -> dict[str, str]:
    """Return the mask of token ids, where a model takes one that it can do without."""
    ids = next((name for name, text in inputs.items() if "randint" in text and text.count(",") > 2), None)  # noqa: PLR2004
    mask = "attention_mask"
    if ids is None or mask in inputs or mask not in [one.name for one in tried.asks]:
        return {}
    values = {name: value_of(text) for name, text in inputs.items()}
    values[mask] = torch.ones_like(values[ids])
    return (
        {mask: f"torch.ones_like({ids})"} if tried.output(lambda model: model(**values)) is not None else {}
    )


def _may_be_tensor(one: Asked) -> bool:
    plain = re.search(r"\b(bool|str|int|float|dict|list)\b", one.annotation)
    return not plain and not re.search(r"return|output|use_|labels?$|targets?$|cache|past", one.name)


def _combined(lists: list[list[str]]) -> Iterator[tuple[str, ...]]:
    """Yield one of each list, those first whose places in their lists are smallest together."""
    places = itertools.product(*(range(min(len(one), 24)) for one in lists))
    for place in sorted(itertools.islice(places, 40_000), key=sum):
        yield tuple(texts[at] for texts, at in zip(lists, place, strict=True))


def _with_loss(empty: Draft, tried: Tried, shapes: Shapes, inputs: dict[str, str], output: Any) -> Draft:
    """Return the draft with the model's own loss, or with one for what it returns."""
    labelled = _labelled(tried, shapes, inputs)
    if labelled is not None:
        return _own(empty, *labelled)
    if own_loss(output) is not None:
        return _own(empty, inputs, output)
    path, prediction = prediction_in(output)
    size = ", ".join(_sizes(tried, inputs, prediction))
    call = f"model({', '.join(_handed(tried, name) for name in inputs)}){path}"
    results = many(prediction.shape[0], SAMPLES) if prediction.ndim else "batch_size"
    number = number_of_classes(prediction, shapes, type(tried.model).__name__)
    if number is not None:
        inner = ", ".join([results, *map(str, places(prediction, number))])
        target = f"torch.randint(0, {number}, ({inner}{',' if inner == results else ''}))"
        moved = ".movedim(-1, 1)" if prediction.ndim > 2 and prediction.shape[1] != number else ""  # noqa: PLR2004
        loss, shown = f"cross_entropy({call}{moved}, target)", "cross entropy with random labels"
    else:
        target = f"torch.randn({results}{', ' if size else ''}{size})"
        loss, shown = f"mse_loss({call}, target)", "mean square error to random targets"
    lines, names = (*_lines(inputs), f"target = {target}"), f"{', '.join(inputs)}, target"
    loss = f"torch.nn.functional.{loss}"
    return replace(empty, lines=lines, batch=names, unpack=names, loss=loss, shown=shown)


def _sizes(tried: Tried, inputs: dict[str, str], prediction: torch.Tensor) -> list[str]:
    """Return the sizes of a result behind its first, as Python: one that grows with the batch is named so."""
    values: dict[str, Any] = {}
    for name, text in inputs.items():
        values[name] = value_of(text, **values, batch_size=SAMPLES + 1)
    output = tried.output(lambda model: model(**values))
    other = prediction if output is None else prediction_in(output)[1]
    after = other.shape[1:] if other.ndim == prediction.ndim else prediction.shape[1:]
    pairs = zip(prediction.shape[1:], after, strict=True)
    return ["batch_size" if pair == (SAMPLES, SAMPLES + 1) else str(pair[0]) for pair in pairs]


def _lines(inputs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines that make the inputs."""
    imports = ("from types import SimpleNamespace",) if "SimpleNamespace(" in "".join(inputs.values()) else ()
    return (*imports, *(f"{name} = {text}" for name, text in inputs.items()))


def _handed(tried: Tried, name: str) -> str:
    """Return how an argument is handed on: by name where it is not among the first."""
    order = [one.name for one in tried.asks]
    return name if order.index(name) == 0 or all(one.required for one in tried.asks) else f"{name}={name}"


def _own(empty: Draft, inputs: dict[str, str], output: Any) -> Draft:
    """Return a draft whose loss is computed by the model, from a batch by name."""
    if isinstance(output, Mapping) and not hasattr(output, "loss"):
        path = '["loss"]' if "loss" in output else ""
    elif hasattr(output, "loss"):
        path = ".loss"
    elif isinstance(output, tuple):
        at = next(i for i, v in enumerate(output) if isinstance(v, torch.Tensor) and v.ndim == 0)
        path = f"[{at}]"
    else:
        path = ".mean()" if isinstance(output, torch.Tensor) and output.ndim else ""
    loss = (
        f"model(**batch){path}" if path or not isinstance(output, Mapping) else "sum(model(**batch).values())"
    )
    made = replace(empty, lines=_lines(inputs), batch=f"dict({', '.join(f'{n}={n}' for n in inputs)})")
    return replace(made, loss=loss, own_loss=True, shown="the one that the model computes")


def _labelled(tried: Tried, shapes: Shapes, inputs: dict[str, str]) -> tuple[dict[str, str], Any] | None:
    """Return the inputs with labels, where the model then computes a loss from them."""
    names = [one.name for one in tried.asks if one.name in LABEL_KEYS[:-1] and one.name not in inputs]
    for name in names:
        for text in _labels(inputs, shapes):
            values = all_values(inputs)
            values[name] = value_of(text, **values)
            output = tried.output(lambda model, values=values: model(**values))  # type: ignore[misc]
            if output is not None and own_loss(output) is not None:
                return {**inputs, name: text}, output
    return None


def _labels(inputs: dict[str, str], shapes: Shapes) -> Iterator[str]:
    """Yield labels: a class a sample, the tokens themselves, a class a token or a pixel."""
    words = next((key for key, text in inputs.items() if "randint" in text), None)
    known = next((v for k, v in shapes.said if CLASSES.search(k) and "vocab" not in k), 2)
    yield f"torch.randint(0, {known}, (batch_size,))"
    if words is not None:
        yield f"torch.randint(0, {known}, {words}.shape)"
        yield f"{words}.clone()"
    pictures = next((key for key, text in inputs.items() if text.count(",") == 3), None)  # noqa: PLR2004
    if pictures is not None:
        yield f"torch.randint(0, {known}, {pictures}.shape[:1] + {pictures}.shape[2:])"
        yield f"{pictures}.clone()"
    yield "torch.randn(batch_size)"
