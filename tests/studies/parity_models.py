"""The models of the parity test: random weights, small inputs, nothing downloaded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves


class Step(NamedTuple):
    """A model, a batch, and a loss of both."""

    model: nn.Module
    batch: Any
    loss: Callable[[nn.Module, Any], torch.Tensor]


class Case(NamedTuple):
    """A named step, built when asked for."""

    name: str
    kind: str
    build: Callable[[], Step]


def _classify(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    out = model(images)
    logits = tree_leaves(out)[0]
    return functional.cross_entropy(logits, labels)


def _segment(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images)["out"], labels)


def _everything(model: nn.Module, batch: Any) -> torch.Tensor:
    """Weigh every floating-point output the same: for models whose own loss depends on data."""
    leaves = [
        leaf
        for leaf in tree_leaves(model(batch))
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    return torch.stack([functional.mse_loss(leaf, torch.zeros_like(leaf)) for leaf in leaves]).sum()


def _own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss


def _first_output(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(**batch)[0]
    return functional.mse_loss(out, torch.zeros_like(out))


def _images(size: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size)


def vision(name: str, size: int = 64, kind: str = "classification", **options: Any) -> Case:
    def build() -> Step:
        import torchvision

        model = torchvision.models.get_model(name, weights=None, **options)
        return Step(model, (_images(size), torch.tensor([1, 2])), _classify)

    return Case(f"torchvision:{name}", kind, build)


def segmentation(name: str, size: int = 64) -> Case:
    def build() -> Step:
        import torchvision

        model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
        return Step(model, (_images(size), torch.zeros(2, size, size, dtype=torch.long)), _segment)

    return Case(f"torchvision:{name}", "segmentation", build)


class Heads(nn.Module):
    """A detector up to its raw predictions: matching boxes depends on data, which fake tensors have not."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.head if hasattr(detector, "head") else detector.rpn.head

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(list(self.backbone(images).values()))


def detection(name: str, size: int = 128) -> Case:
    def build() -> Step:
        import torchvision

        model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        return Step(Heads(model), _images(size), _everything)

    return Case(f"torchvision:{name}", "detection, to the raw predictions", build)


def video(name: str, size: int = 32) -> Case:
    def build() -> Step:
        import torchvision

        model = torchvision.models.get_model(name, weights=None)
        return Step(model, (torch.randn(2, 3, 4, size, size), torch.tensor([1, 2])), _classify)

    return Case(f"torchvision:{name}", "video", build)


def timm_model(name: str, size: int = 224, **options: Any) -> Case:
    def build() -> Step:
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return Step(model, (_images(size), torch.tensor([1, 2])), _classify)

    return Case(f"timm:{name}", "classification", build)


_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
_TOKENS = torch.arange(2 * 16).reshape(2, 16) % 90 + 3


def language(kind: str, head: str, *, labels: bool = True, **config: Any) -> Case:
    """A transformers model by type: `head` is the class to build, `config` changes its configuration."""

    def build() -> Step:
        import transformers

        model = getattr(transformers, head)(transformers.AutoConfig.for_model(kind, **(_SMALL | config)))
        batch = {"input_ids": _TOKENS}
        if labels:
            batch["labels"] = _TOKENS if "LM" in head or "Conditional" in head else torch.tensor([0, 1])
        return Step(model, batch, _own_loss if labels else _first_output)

    return Case(f"transformers:{kind}", head, build)


def other_modality(
    kind: str, head: str, batch: Callable[[], dict[str, torch.Tensor]], loss: Any, **config: Any
) -> Case:
    def build() -> Step:
        import transformers

        model = getattr(transformers, head)(transformers.AutoConfig.for_model(kind, **config))
        return Step(model, batch(), loss)

    return Case(f"transformers:{kind}", head, build)


_ENCODER_DECODER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}

CASES = (
    vision("alexnet"),
    vision("vgg11_bn"),
    vision("resnet18"),
    vision("resnet50"),
    vision("resnext50_32x4d"),
    vision("densenet121"),
    vision("squeezenet1_1"),
    vision("mobilenet_v2"),
    vision("mobilenet_v3_small"),
    vision("mnasnet0_5"),
    vision("shufflenet_v2_x0_5"),
    vision("efficientnet_b0"),
    vision("efficientnet_v2_s"),
    vision("regnet_y_400mf"),
    vision("convnext_tiny"),
    vision("googlenet", init_weights=False),
    vision("inception_v3", 299, init_weights=False),
    vision("vit_b_16", 224),
    vision("swin_t"),
    vision("swin_v2_t"),
    vision("maxvit_t", 224),
    segmentation("fcn_resnet50"),
    segmentation("deeplabv3_mobilenet_v3_large"),
    segmentation("lraspp_mobilenet_v3_large"),
    detection("ssdlite320_mobilenet_v3_large"),
    detection("ssd300_vgg16", 300),
    detection("retinanet_resnet50_fpn"),
    detection("fcos_resnet50_fpn"),
    detection("fasterrcnn_mobilenet_v3_large_fpn"),
    video("r3d_18"),
    timm_model("resnet10t", 64),
    timm_model("convnext_atto", 64),
    timm_model("vit_tiny_patch16_224"),
    timm_model("deit_tiny_distilled_patch16_224"),
    timm_model("mixer_s32_224"),
    timm_model("gmlp_ti16_224"),
    timm_model("mobilevit_xxs", 64),
    timm_model("efficientformer_l1"),
    timm_model("levit_128s"),
    timm_model("poolformer_s12", 64),
    timm_model("xcit_nano_12_p16_224"),
    timm_model("ghostnet_100", 64),
    timm_model("nf_resnet26", 64),
    timm_model("eva02_tiny_patch14_224"),
    timm_model("tf_efficientnet_lite0", 64),
    language("bert", "BertForSequenceClassification"),
    language("roberta", "RobertaForMaskedLM"),
    language("distilbert", "DistilBertForMaskedLM", dim=32, n_layers=2, n_heads=2, hidden_dim=64),
    language("albert", "AlbertForMaskedLM", embedding_size=16),
    language("electra", "ElectraForMaskedLM"),
    language("deberta-v2", "DebertaV2ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    language("gpt2", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0),
    language("llama", "LlamaForCausalLM", num_key_value_heads=1),
    language("mistral", "MistralForCausalLM", num_key_value_heads=2),
    language("opt", "OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32),
    language("bloom", "BloomForCausalLM", n_layer=2, n_head=2),
    language("gpt_neox", "GPTNeoXForCausalLM"),
    language("mamba", "MambaForCausalLM"),
    language(
        "t5",
        "T5ForConditionalGeneration",
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    ),
    language("bart", "BartForConditionalGeneration", **_ENCODER_DECODER),
    other_modality(
        "vit",
        "ViTForImageClassification",
        lambda: {"pixel_values": _images(32), "labels": torch.tensor([0, 1])},
        _own_loss,
        image_size=32,
        patch_size=8,
        **_SMALL,
    ),
    other_modality(
        "segformer",
        "SegformerForSemanticSegmentation",
        lambda: {"pixel_values": _images(64), "labels": torch.zeros(2, 64, 64, dtype=torch.long)},
        _own_loss,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
    ),
    other_modality(
        "whisper",
        "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(2, 20, 60), "labels": _TOKENS},
        _own_loss,
        num_mel_bins=20,
        max_source_positions=30,
        vocab_size=99,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **_ENCODER_DECODER,
    ),
    other_modality(
        "clip",
        "CLIPModel",
        lambda: {"input_ids": _TOKENS, "pixel_values": _images(32), "return_loss": True},
        _own_loss,
        text_config={**_SMALL, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**_SMALL, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    ),
)
