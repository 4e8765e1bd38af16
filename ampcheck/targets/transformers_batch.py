"""Batches for transformers models, made from the parameters of `forward` and the configuration."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.targets.spec import Options
from ampcheck.targets.transformers_config import parts

BATCH, LENGTH, LABEL_LENGTH, CHOICES, SECONDS_OF_SAMPLES, BOXES = 2, 64, 8, 2, 8000, 3
#: Special tokens sit below this index in most vocabularies; random text stays above them.
FIRST_WORD = 5
#: Frames of a spectrogram where the configuration does not fix them.
FRAMES = 128
PER_EXAMPLE = (
    "ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForVideoClassification",
    "ForNextSentencePrediction", "ForMultipleChoice",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that the inputs of a model have."""

    batch: int
    length: int
    words: int
    labels: int
    channels: int
    picture: tuple[int, int]
    frames: int
    mels: int
    sources: int


def candidates(model: Any, options: Options) -> Iterator[dict[str, Any]]:
    """Yield batches to try, the fullest first: with images and text, with text alone, and both without labels."""
    parameters = inspect.signature(model.forward).parameters
    sizes = _sizes(model, options)
    main = _main_inputs(model, parameters, sizes)
    labels = _labels(model, parameters, sizes, main)
    extra = _extra_inputs(parameters, sizes, main)
    yield main | extra | labels
    if extra:
        yield main | labels
    if labels:
        yield main | extra
        yield main


def _sizes(model: Any, options: Options) -> Sizes:
    config = model.config
    given = options.input_shape or ()
    picture = _picture(config)
    words = next((c.vocab_size for c in parts(config) if isinstance(vars(c).get("vocab_size"), int)), 1000)
    length = min([LENGTH, *(v - 2 for c in parts(config) for v in [_positions(c)] if v)])
    batch, length, picture = options.batch_size or BATCH, max(length, 2), picture
    if len(given) in (1, 2):
        length, batch = given[-1], given[0] if len(given) == 2 else batch  # noqa: PLR2004
    elif len(given) > 2:  # noqa: PLR2004
        picture, batch = (given[-2], given[-1]), given[0] if len(given) > 3 else batch  # noqa: PLR2004
    return Sizes(
        batch=batch,
        length=length,
        words=words,
        labels=getattr(config, "num_labels", 2) or 2,
        channels=_first_number(config, ("num_channels", "in_channels", "in_chans"), 3),
        picture=picture,
        frames=_first_number(config, ("num_frames",), 8),
        mels=_first_number(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"), 80),
        sources=_first_number(config, ("max_source_positions",), FRAMES // 2),
    )


def _positions(config: Any) -> int | None:
    for name in ("max_position_embeddings", "n_positions", "max_target_positions"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 2:  # noqa: PLR2004: -1 and 0 mean "no limit"
            return value
    return None


def _first_number(config: Any, names: tuple[str, ...], default: int) -> int:
    for part in parts(config):
        for name in names:
            value = vars(part).get(name)
            if isinstance(value, int) and value > 0:
                return value
    return default


def _picture(config: Any) -> tuple[int, int]:
    for part in parts(config):
        value = vars(part).get("image_size") or vars(part).get("img_size")
        if isinstance(value, int):
            return value, value
        if isinstance(value, list | tuple) and len(value) == 2:  # noqa: PLR2004
            return int(value[0]), int(value[1])
    return 224, 224


def _main_inputs(model: Any, parameters: Any, sizes: Sizes) -> dict[str, Any]:
    """Return what the model is named to take, and what it cannot do without."""
    name = model.main_input_name if model.main_input_name in parameters else "input_ids"
    wanted = {name} | {k for k, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    wanted |= {"input_ids", "bbox"} & parameters.keys() if name != "pixel_values" or "return_loss" in parameters else set()
    wanted = {key for key in wanted if key in parameters}
    inputs = {key: made for key in sorted(wanted) if (made := _input(key, model, sizes)) is not None}
    if "input_ids" in inputs and "attention_mask" in parameters:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs


def _extra_inputs(parameters: Any, sizes: Sizes, main: dict[str, Any]) -> dict[str, Any]:
    """Return images for a model that takes them beside text."""
    if "input_ids" in main and "pixel_values" in parameters and "pixel_values" not in main:
        return {"pixel_values": torch.randn(sizes.batch, sizes.channels, *sizes.picture)}
    return {}


def _input(name: str, model: Any, sizes: Sizes) -> torch.Tensor | None:
    """Return a random input by the name of its parameter, None for a name that means nothing here."""
    kind = type(model).__name__
    b = sizes.batch
    if name in ("input_ids", "decoder_input_ids"):
        choices = (CHOICES,) if kind.endswith("ForMultipleChoice") and name == "input_ids" else ()
        return torch.randint(min(FIRST_WORD, sizes.words - 1), sizes.words, (b, *choices, sizes.length))
    if name in ("pixel_values", "pixel_values_videos"):
        video = "num_frames" in vars(model.config) or "Video" in kind
        return torch.randn(b, *([sizes.frames] if video else []), sizes.channels, *sizes.picture)
    if name == "input_features":
        return torch.randn(b, sizes.mels, 2 * sizes.sources)
    if name == "input_values":
        return _samples(model, sizes)
    if name == "bool_masked_pos":
        patches = (sizes.picture[0] // model.config.patch_size) ** 2
        return torch.rand(b, patches) > 0.5  # noqa: PLR2004
    if name == "bbox":
        return torch.tensor([100, 100, 200, 200]).expand(b, sizes.length, 4).contiguous()
    return None


def _samples(model: Any, sizes: Sizes) -> torch.Tensor:
    """Return sound as the model takes it: a spectrogram, or samples."""
    longest = vars(model.config).get("max_length")
    if vars(model.config).get("num_mel_bins") and isinstance(longest, int):
        return torch.randn(sizes.batch, longest, sizes.mels)
    return torch.randn(sizes.batch, SECONDS_OF_SAMPLES)


def _labels(model: Any, parameters: Any, sizes: Sizes, main: dict[str, Any]) -> dict[str, Any]:
    """Return what the model computes its loss from."""
    kind = type(model).__name__
    labels: dict[str, Any] = {}
    b = sizes.batch
    if "return_loss" in parameters:
        labels["return_loss"] = True
    for name in ("start_positions", "end_positions"):
        if name in parameters:
            labels[name] = torch.randint(0, sizes.length, (b,))
    for name in ("next_sentence_label", "sentence_order_label"):
        if name in parameters:
            labels[name] = torch.randint(0, 2, (b,))
    if "labels" in parameters:
        labels["labels"] = _label(kind, model, sizes, main)
    elif "mask_labels" in parameters and "class_labels" in parameters:
        labels["mask_labels"] = [torch.randint(0, 2, (BOXES, *sizes.picture)).float() for _ in range(b)]
        labels["class_labels"] = [torch.randint(0, sizes.labels, (BOXES,)) for _ in range(b)]
    elif "decoder_input_ids" in parameters:
        labels["decoder_input_ids"] = _input("decoder_input_ids", model, sizes)
    return labels


def _label(kind: str, model: Any, sizes: Sizes, main: dict[str, Any]) -> Any:
    """Return labels of the shape that a kind of head takes."""
    b = sizes.batch
    if kind.endswith(PER_EXAMPLE):
        return torch.randint(0, CHOICES if kind.endswith("ForMultipleChoice") else sizes.labels, (b,))
    if kind.endswith("ForTokenClassification"):
        return torch.randint(0, sizes.labels, (b, sizes.length))
    if kind.endswith("ForSemanticSegmentation"):
        return torch.randint(0, sizes.labels, (b, *sizes.picture))
    if kind.endswith("ForDepthEstimation"):
        return torch.rand(b, *sizes.picture) + 1
    if kind.endswith(("ForObjectDetection", "ForSegmentation")):
        return [_objects(sizes) for _ in range(b)]
    if kind.endswith("ForCTC"):
        return torch.randint(1, sizes.words, (b, LABEL_LENGTH))
    words = main.get("input_ids")
    return torch.randint(min(FIRST_WORD, sizes.words - 1), sizes.words, (b, sizes.length)) if words is None else words.clone()


def _objects(sizes: Sizes) -> dict[str, torch.Tensor]:
    """Return boxes as centre and size, in parts of the picture."""
    centre_and_size = torch.cat([0.4 + 0.2 * torch.rand(BOXES, 2), 0.1 + 0.3 * torch.rand(BOXES, 2)], dim=1)
    return {"class_labels": torch.randint(0, sizes.labels, (BOXES,)), "boxes": centre_and_size}
