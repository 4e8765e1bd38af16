"""What can be asked for (a spec, options) and what comes back (a target), as values."""

import difflib
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.errors import TargetError

if TYPE_CHECKING:
    import torch

ZOOS = ("torchvision", "timm", "transformers")
EXAMPLES = "ampcheck model.py\nampcheck model.py:Net\nampcheck torchvision:resnet18"


@dataclass(frozen=True, slots=True)
class Options:
    """How to build a target; None leaves the choice to the target."""

    batch_size: int | None = None
    input_shape: tuple[int, ...] | None = None
    weights: Path | None = None
    device: str = "cpu"
    small: bool = False
    seed: int = 0
    dry: bool = False  #: build it under `fake_tensors`
    infer: bool = False  #: no loss is wanted
    captured: Path | None = None  #: a batch, weights and gradients that were kept in training


@dataclass(frozen=True, slots=True)
class Target:
    """A model, the batches to run it on and its loss, with what had to be assumed.

    Run it inside `with target.active():`, so that late imports of the user's code still find its folder.
    """

    name: str
    #: An `nn.Module`, or a callable that stands before one.
    model: Any
    #: At least one; step i uses `batch(i)`.
    batches: Sequence[Any]
    loss: "Callable[[Any, Any], torch.Tensor]"
    optimizer: "Callable[[Any], torch.optim.Optimizer] | None" = None
    after_step: Callable[[Any], object] | None = None
    #: What the bench scores trained models by: a larger `metric(model, batch)` is better.
    metric: "Callable[[Any, Any], float | torch.Tensor] | None" = None
    validation: Sequence[Any] = ()
    #: What is run where the model is used, not trained: `predict(model, batch)`; None: the model on the batch.
    predict: Callable[[Any, Any], Any] | None = None
    #: The file shows that the model is used, not trained.
    infers: bool = False
    #: Training steps the user's file says it takes; 0: it does not say.
    steps: int = 0
    #: The user's file trains with a gradient scaler.
    scaled: bool = False
    #: False: its loss holds at these weights alone, so that nothing can be learnt from more steps.
    trains: bool = True
    #: The batches of earlier steps, which delayed scaling has seen.
    warmup: Sequence[Any] = ()
    #: The loss is invented here, so gradient magnitudes are not the user's.
    stand_in_loss: bool = False
    #: Sentences: what was assumed, because nobody said it.
    notes: tuple[str, ...] = ()
    #: What of the user's program the audit leaves out, '' for nothing.
    left_out: str = ""
    #: The user's file, None for a model of a zoo.
    file: Path | None = None
    imports: AbstractContextManager[object] = field(default_factory=nullcontext, repr=False, compare=False)

    def batch(self, step: int) -> Any:
        """Return the batch of a step; they repeat."""
        return self.batches[step % len(self.batches)]

    def active(self) -> AbstractContextManager[object]:
        """Return a context, usable again and again, in which the user's code finds what lies beside it."""
        return self.imports


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec: `source` is a file, a module or a zoo, `name` what to take from it ("": find it)."""

    text: str
    kind: str
    source: str
    name: str = ""


def no_loss(_model: Any, _batch: Any) -> Any:
    """Stand where a target has no loss: it is there to be used, not trained."""
    raise TargetError(
        "expected a loss to train with, got a target that only predicts; define loss(model, batch), or pass "
        "--mode infer"
    )


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes in text such as "8x3x64x64" or "3,64,64"."""
    parts = re.split(r"[x,\u00d7]", text.strip().strip("()[]").lower().replace(" ", ""))
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise TargetError(f"expected a shape of positive sizes such as 8x3x64x64 or 3,64,64, got {text!r}")
    return tuple(int(part) for part in parts)


def parse_spec(text: str) -> Spec:
    """Return what a spec names; a file that is not there is an error already here, before torch is loaded."""
    head, colon, tail = text.rpartition(":")
    if text.partition(":")[0] in ZOOS and ":" in text:
        zoo, _, name = text.partition(":")
        return Spec(text, zoo, zoo, name)
    # On Windows "C:\model.py" holds a colon too: what follows ours is a dotted name.
    named = bool(colon) and all(part.isidentifier() for part in tail.split("."))
    source, name = (head, tail) if named and not Path(text).is_file() else (text, "")
    if source.endswith(".json"):
        raise TargetError(
            f"expected a Python file, got {source!r}", hint=f"to show a saved report: ampcheck show {source}"
        )
    if source.endswith(".py") or Path(source).is_file():
        return Spec(text, "file", str(_existing(source)), name)
    zoo = close(source, ZOOS) if name and "." not in source else ""
    if zoo and not find_spec(source):
        raise TargetError(f"no zoo or module {source!r}{zoo}", hint=EXAMPLES)
    if name and all(part.isidentifier() for part in source.split(".")):
        return Spec(text, "module", source, name)
    if Path(source).is_dir():
        raise TargetError(f"expected a Python file, got the folder {source!r}", hint=EXAMPLES)
    raise TargetError(_no_such_file(source), hint=EXAMPLES)


def close(name: str, known: Sequence[str]) -> str:
    """Return the three known names closest to one that is not known, as the end of a sentence."""
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(matches)}?" if matches else ""


def _existing(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        raise TargetError(f"expected a Python file, got the folder {source!r}")
    if not path.is_file():
        raise TargetError(_no_such_file(source))
    return path.resolve()


def _no_such_file(source: str) -> str:
    path = Path(source)
    beside = sorted(entry.name for entry in path.parent.glob("*.py")) if path.parent.is_dir() else []
    advice = (
        close(path.name, beside) or "; expected model.py, path.py:name, pkg.module:name or torchvision:name"
    )
    return f"no such file: {source!r}{advice}"
