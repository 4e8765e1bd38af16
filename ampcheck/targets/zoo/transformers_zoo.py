"""Models of transformers by model type or class name: default configurations, random weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.losses import loss_of_model, own_loss, stand_in, stand_in_of_model
from ampcheck.targets.lossfinder import STAND_IN_NOTE, probe
from ampcheck.targets.nested import input_shapes, move
from ampcheck.targets.spec import Options, Spec, Target, close
from ampcheck.targets.userfile import explained
from ampcheck.targets.weights import place, weights_note
from ampcheck.targets.zoo import library
from ampcheck.targets.zoo.transformers_batch import candidates
from ampcheck.targets.zoo.transformers_config import LEVELS, prepared

#: What a model type is trained for, most telling first; the last is the bare model.
HEADS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT", "MASKED_LM", "CAUSAL_LM",
    "IMAGE_CLASSIFICATION", "ZERO_SHOT_IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "VIDEO_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION",
    "TIME_SERIES_PREDICTION", "PRETRAINING", "SEQUENCE_CLASSIFICATION", "MULTIPLE_CHOICE",
    "VISUAL_QUESTION_ANSWERING",
)  # fmt: skip
#: Vision-language types are in several lists; these are classifiers first although they have a text head too.
ENCODERS_FIRST = ("clip", "siglip", "siglip2", "align", "altclip", "chinese_clip", "clipseg", "metaclip_2")
#: 1.5e9 parameters are 6 GB in FP32, and a step needs about four times that.
MOST_PARAMETERS = 1_500_000_000


@dataclass(frozen=True, slots=True)
class Fit:
    """A model with a batch that it takes, and what it returned for it."""

    model: Any
    batch: dict[str, Any]
    has_loss: bool
    note: str = ""


def from_transformers(spec: Spec, options: Options) -> Target:
    """Return a transformers model, its own loss where it has one, and a batch made from its signature."""
    transformers = library("transformers")
    kind = _class(transformers, spec.name)
    with _quiet(transformers):
        fit = _fit(kind, spec.name, options)
    model = place(fit.model, options)
    inputs = ", ".join(
        f"{key} {'; '.join(input_shapes(value))}" for key, value in fit.batch.items() if key != "labels"
    )
    notes = (
        f"{kind.__name__} of the default configuration{fit.note}",
        weights_note(options),
        f"inputs are random: {inputs}",
    )
    return Target(
        name=spec.text,
        model=model,
        batches=[move(fit.batch, options.device)],
        loss=loss_of_model if fit.has_loss else stand_in_of_model,
        stand_in_loss=not fit.has_loss,
        notes=(*notes, "the loss is the model's own, labels are random" if fit.has_loss else STAND_IN_NOTE),
    )


def _class(transformers: Any, name: str) -> Any:
    """Return the model class for a model type or class name."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    lists = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {}) for head in HEADS]
    lists.append(modeling_auto.MODEL_MAPPING_NAMES)
    classes = [_first(names[name]) for names in lists if name in names]
    if name in ENCODERS_FIRST:
        classes.reverse()
    for wanted in (*classes, name):
        try:
            kind = getattr(transformers, wanted, None)
        except (ImportError, RuntimeError) as error:
            raise TargetError(f"transformers cannot load {wanted}: {explained(error)}") from error
        if isinstance(kind, type) and getattr(kind, "config_class", None) is not None:
            return kind
    known = [*CONFIG_MAPPING_NAMES, *{_first(value) for names in lists for value in names.values()}]
    raise TargetError(f"transformers has no model type or class {name!r}{close(name, known)}")


def _first(value: Any) -> str:
    return value if isinstance(value, str) else str(value[0])


def _fit(kind: Any, name: str, options: Options) -> Fit:
    """Return the most shrunk model that runs (--small), or the full one, with a batch that it takes."""
    errors: list[Exception] = []
    for level in LEVELS if options.small else LEVELS[-1:]:
        try:
            config = prepared(kind.config_class(), level)
            if not options.dry:
                _affordable(kind, config, name)
            return _fit_batch(kind(config), level.note, options)
        except Exception as error:  # noqa: BLE001
            errors.append(error)
    causes = [error for error in errors if not isinstance(error, TargetError)]
    if not causes:
        raise errors[0]
    # The complaint of the least changed model, the last, is about the model and not about our changes.
    raise TargetError(f"transformers cannot run {name}: {explained(causes[-1])}") from causes[-1]


def _fit_batch(model: Any, note: str, options: Options) -> Fit:
    """Return the first batch that the model runs on, those with a loss before those without."""
    model.train()
    errors: list[Exception] = []
    bare: Fit | None = None
    for batch in candidates(model, options):
        try:
            output = probe(model, batch)
            if own_loss(output) is not None:
                return Fit(model, batch, has_loss=True, note=note)
            stand_in(output)
        except Exception as error:  # noqa: BLE001
            errors.append(error)
            continue
        bare = bare or Fit(model, batch, has_loss=False, note=note)
    if bare is not None:
        return bare
    raise errors[-1]


def _affordable(kind: Any, config: Any, name: str) -> None:
    """Refuse a model that would not fit into the memory of a laptop, counted without allocating it."""
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in kind(config).parameters())
    except Exception:  # noqa: BLE001
        return
    if count > MOST_PARAMETERS:
        raise TargetError(
            f"{name} has {count / 1e9:.1f} billion parameters by default, too many here; pass --small",
            hint=f"ampcheck transformers:{name} --small",
        )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hold back the library's caveats on configurations while several are tried."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
