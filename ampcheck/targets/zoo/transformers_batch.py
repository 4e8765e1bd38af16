"""Batches for transformers models, made from the parameters of `forward` and the configuration."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.targets.spec import Options
from ampcheck.targets.zoo.transformers_config import parts

BATCH, LENGTH, LABEL_LENGTH, CHOICES, SAMPLES, BOXES = 2, 64, 8, 2, 8000, 3
#: Special tokens lie below this index in most vocabularies; random text stays above them.
FIRST_WORD = 5
#: Pairs of frames of a spectrogram, where the configuration does not fix them.
SOURCES = 64
#: What a model may be given beside its main input.
SIDE_INPUTS = frozenset({"input_ids", "bbox", "past_values", "future_values"})


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's configuration and class, with the sizes that its inputs have."""

    config: Any
    kind: str
    batch: int
    length: int
    words: int
    labels: int
    picture: tuple[int, ...]

    def number(self, names: tuple[str, ...], default: int) -> int:
        """Return the first of the attributes that is a positive number, in the configuration or inside it."""
        return _first_number(self.config, names, default)


def candidates(model: Any, options: Options) -> Iterator[dict[str, Any]]:
    """Yield batches to try, the fullest first: with images and text, with text alone, then without labels."""
    parameters = inspect.signature(model.forward).parameters
    sizes = _sizes(model, options)
    main = _main_inputs(model, parameters, sizes)
    labels = _labels(parameters, sizes)
    extra: dict[str, Any] = {}
    if "input_ids" in main and "pixel_values" in parameters and "pixel_values" not in main:
        extra = {"pixel_values": _pixels(sizes)}
    yield main | extra | labels
    if extra:
        yield main | labels
    if "input_features" in main:  # speech models differ in whether time or frequency comes last
        yield main | {"input_features": main["input_features"].transpose(1, 2).contiguous()} | labels
    if labels:
        yield main | extra
        yield main


def _sizes(model: Any, options: Options) -> Sizes:
    config = model.config
    shape = options.input_shape or ()
    length = max(2, min([LENGTH, *(n - 2 for part in parts(config) if (n := _positions(part)))]))
    picture = _picture(config)
    batch = options.batch_size
    if len(shape) in (1, 2):  # text: [batch,] words
        batch, length = batch or (shape[0] if len(shape) > 1 else None), shape[-1]
    elif shape:  # pictures: [batch,] channels, height, width
        batch, picture = batch or (shape[0] if len(shape) > len("chw") else None), shape[-2:]
    return Sizes(
        config=config,
        kind=type(model).__name__,
        batch=batch or BATCH,
        length=length,
        words=_first_number(config, ("vocab_size",), 1000),
        labels=getattr(config, "num_labels", 0) or 2,
        picture=picture,
    )


def _positions(config: Any) -> int:
    """Return how many positions a text may have, 0 where there is no limit."""
    for name in ("max_position_embeddings", "n_positions", "max_target_positions"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 1:
            return value
    return 0


def _first_number(config: Any, names: tuple[str, ...], default: int) -> int:
    values = (vars(part).get(name) for part in parts(config) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), default)


def _picture(config: Any) -> tuple[int, ...]:
    for part in parts(config):
        value = vars(part).get("image_size") or vars(part).get("img_size")
        if isinstance(value, int):
            return value, value
        if isinstance(value, list | tuple) and len(value) == len(("height", "width")):
            return tuple(int(side) for side in value)
    return 224, 224


def _main_inputs(model: Any, parameters: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Return what the model is named to take, and what it cannot do without."""
    required = {
        k for k, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    }
    wanted = (required | SIDE_INPUTS | {model.main_input_name}) & parameters.keys()
    inputs = {name: INPUTS[name](sizes) for name in sorted(wanted) if name in INPUTS}
    if "input_ids" in inputs and "attention_mask" in parameters:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs


def _words(sizes: Sizes, *shape: int) -> torch.Tensor:
    return torch.randint(min(FIRST_WORD, sizes.words - 1), sizes.words, shape or (sizes.batch, sizes.length))


def _text(sizes: Sizes) -> torch.Tensor:
    choices = (CHOICES,) if sizes.kind.endswith("ForMultipleChoice") else ()
    return _words(sizes, sizes.batch, *choices, sizes.length)


def _pixels(sizes: Sizes) -> torch.Tensor:
    video = "num_frames" in vars(sizes.config) or "Video" in sizes.kind
    frames = (sizes.number(("num_frames",), 8),) if video else ()
    channels = sizes.number(("num_channels", "in_channels", "in_chans"), 3)
    return torch.randn(sizes.batch, *frames, channels, *sizes.picture)


def _spectrogram(sizes: Sizes) -> torch.Tensor:
    bins = sizes.number(("num_mel_bins", "input_feat_per_channel", "feature_size"), 80)
    return torch.randn(sizes.batch, bins, 2 * sizes.number(("max_source_positions",), SOURCES))


def _sound(sizes: Sizes) -> torch.Tensor:
    """Return sound as the model takes it: a spectrogram of fixed length, or samples."""
    config = vars(sizes.config)
    if isinstance(config.get("max_length"), int) and config.get("num_mel_bins"):
        return torch.randn(sizes.batch, config["max_length"], config["num_mel_bins"])
    return torch.randn(sizes.batch, SAMPLES)


def _series(sizes: Sizes, length: str) -> torch.Tensor:
    variables = sizes.number(("num_input_channels", "input_size"), 1)
    return torch.randn(sizes.batch, getattr(sizes.config, length), variables)


def _masked_patches(sizes: Sizes) -> torch.Tensor:
    patches = (sizes.picture[0] // sizes.config.patch_size) ** 2
    return torch.arange(patches).remainder(2).bool().expand(sizes.batch, patches).contiguous()


#: Parameters of `forward` whose meaning is known, to what makes a random value for them.
INPUTS: dict[str, Callable[[Sizes], torch.Tensor]] = {
    "input_ids": _text,
    "decoder_input_ids": _words,
    "pixel_values": _pixels,
    "pixel_values_videos": _pixels,
    "input_features": _spectrogram,
    "input_values": _sound,
    "past_values": lambda sizes: _series(sizes, "context_length"),
    "future_values": lambda sizes: _series(sizes, "prediction_length"),
    "bool_masked_pos": _masked_patches,
    "bbox": lambda sizes: (
        torch.tensor([100, 100, 200, 200]).expand(sizes.batch, sizes.length, 4).contiguous()
    ),
}


def _labels(parameters: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Return what the model computes its loss from."""
    labels: dict[str, Any] = {"return_loss": True} if "return_loss" in parameters else {}
    for name in ("start_positions", "end_positions"):
        if name in parameters:
            labels[name] = torch.randint(0, sizes.length, (sizes.batch,))
    for name in ("next_sentence_label", "sentence_order_label"):
        if name in parameters:
            labels[name] = torch.randint(0, 2, (sizes.batch,))
    if "labels" in parameters:
        labels["labels"] = _label(sizes)
    elif {"mask_labels", "class_labels"} <= parameters.keys():
        masks = [torch.randint(0, 2, (BOXES, *sizes.picture)).float() for _ in range(sizes.batch)]
        labels |= {"mask_labels": masks, "class_labels": [_classes(sizes, BOXES) for _ in masks]}
    elif "decoder_input_ids" in parameters:
        labels["decoder_input_ids"] = _words(sizes)
    return labels


def _label(sizes: Sizes) -> Any:
    """Return labels for the kind of head; words to predict where the name of the class says nothing else."""
    head = sizes.kind.rpartition("For")[2]
    return HEAD_LABELS.get(head, _words)(sizes)


def _classes(sizes: Sizes, *shape: int) -> torch.Tensor:
    return torch.randint(0, sizes.labels, shape or (sizes.batch,))


def _objects(sizes: Sizes) -> list[dict[str, torch.Tensor]]:
    """Return boxes as centre and size, in parts of the picture."""
    return [
        {
            "class_labels": _classes(sizes, BOXES),
            "boxes": torch.cat([0.4 + 0.2 * torch.rand(BOXES, 2), 0.1 + 0.3 * torch.rand(BOXES, 2)], dim=1),
        }
        for _ in range(sizes.batch)
    ]


#: Ends of class names to labels; question answering with `labels` is about pictures: a score per answer.
HEAD_LABELS: dict[str, Callable[[Sizes], Any]] = {
    "SequenceClassification": _classes,
    "ImageClassification": _classes,
    "AudioClassification": _classes,
    "VideoClassification": _classes,
    "NextSentencePrediction": lambda sizes: torch.randint(0, 2, (sizes.batch,)),
    "MultipleChoice": lambda sizes: torch.randint(0, CHOICES, (sizes.batch,)),
    "TokenClassification": lambda sizes: _classes(sizes, sizes.batch, sizes.length),
    "SemanticSegmentation": lambda sizes: _classes(sizes, sizes.batch, *sizes.picture),
    "DepthEstimation": lambda sizes: torch.rand(sizes.batch, *sizes.picture) + 1,
    "QuestionAnswering": lambda sizes: torch.rand(sizes.batch, sizes.labels),
    "ObjectDetection": _objects,
    "Segmentation": _objects,
    "CTC": lambda sizes: torch.randint(1, sizes.words, (sizes.batch, LABEL_LENGTH)),
}
