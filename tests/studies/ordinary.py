"""Ordinary models, as people train them: by name, at random initialisation, small enough for one core."""

from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ampcheck.targets import Options, load
from ampcheck.targets.spec import Target

_TORCHVISION = """
alexnet resnet18 resnet34 resnet50 resnext50_32x4d densenet121 squeezenet1_0 squeezenet1_1 mobilenet_v2
mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet1_0 shufflenet_v2_x0_5 shufflenet_v2_x1_0 efficientnet_b0
efficientnet_v2_s regnet_x_400mf regnet_y_400mf convnext_tiny googlenet inception_v3 vit_b_16 swin_t swin_v2_t
deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large ssdlite320_mobilenet_v3_large
fasterrcnn_mobilenet_v3_large_320_fpn r3d_18 mc3_18
"""
_TIMM = """
resnet10t convnext_atto mobilevit_xxs ghostnet_100 nf_resnet26 tf_efficientnet_lite0 poolformer_s12 levit_128s
vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224 xcit_nano_12_p16_224 eva02_tiny_patch14_224 repvgg_a0
mobilenetv4_conv_small edgenext_xx_small tinynet_e
"""
_TRANSFORMERS = """
bert roberta distilbert albert electra deberta-v2 gpt2 llama mistral opt bloom gpt_neox mamba t5 bart vit segformer
whisper clip
"""
#: These take one size of picture only.
_FIXED_SIZE = frozenset(
    [
        "levit_128s",
        "vit_tiny_patch16_224",
        "deit_tiny_patch16_224",
        "mixer_s32_224",
        "xcit_nano_12_p16_224",
        "eva02_tiny_patch14_224",
        "inception_v3",
        "ssdlite320_mobilenet_v3_large",
        "r3d_18",
        "mc3_18",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
    ]
)
BATCH = 4
SIDE = 64

ORDINARY = [
    *(f"torchvision:{name}" for name in _TORCHVISION.split()),
    *(f"timm:{name}" for name in _TIMM.split()),
    *(f"transformers:{name}" for name in _TRANSFORMERS.split()),
]
#: One of each kind, and quick: for every test run.
REPRESENTATIVE = ["torchvision:squeezenet1_1", "timm:mobilevit_xxs", "transformers:bert"]


def ordinary(spec: str, seed: int = 0, trained: int = 0) -> Target:
    """Return an ordinary model with its batch and loss, after so many steps in FP32; the same seed gives the same."""
    target = _untrained(spec, seed)
    if trained:
        target.model.load_state_dict(_state_after(spec, seed, trained))
    torch.manual_seed(seed)  # for dropout, which has no seed in the target
    return target


def _untrained(spec: str, seed: int) -> Target:
    zoo, _, name = spec.partition(":")
    fixed = zoo == "transformers" or name in _FIXED_SIZE
    shape = None if fixed else (3, SIDE, SIDE)
    return load(spec, Options(batch_size=BATCH, input_shape=shape, small=True, seed=seed))


@lru_cache(maxsize=3)
def _state_after(spec: str, seed: int, steps: int) -> dict[str, torch.Tensor]:
    """Return the model's state after so many steps; both precisions and all draws begin at the same."""
    target = _untrained(spec, seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(target.model.parameters(), 3e-4)
    for _ in range(steps):
        target.loss(target.model, redrawn(target.batch(0))).backward()
        torch.nn.utils.clip_grad_norm_(target.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state: dict[str, torch.Tensor] = target.model.state_dict()
    return state


def redrawn(batch: Any) -> Any:
    """Return another batch of the same kind."""
    return tree_map_only(torch.Tensor, _drawn, batch)


def _drawn(tensor: torch.Tensor) -> torch.Tensor:
    """Return other numbers of the same kind: a batch that repeats is learnt by heart, and its gradients vanish."""
    if tensor.dim() == 2 and tensor.shape[1] == 4 and (tensor[:, 2:] > tensor[:, :2]).all():
        return tensor  # boxes, which have a left and a right side
    if tensor.is_floating_point():
        return torch.randn_like(tensor) * tensor.std() + tensor.mean()
    return tensor.flatten()[torch.randperm(tensor.numel())].view(tensor.shape)
