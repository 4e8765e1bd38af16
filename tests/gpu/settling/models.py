"""The models of the golden traces: torch alone, the kinds of layers that the zoos have, the same weights everywhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from settling.fixed import fill, numbers


class Step(NamedTuple):
    """A model, a batch and the loss of both."""

    model: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor]

    def to(self, device: str) -> "Step":
        """Return the step on a device."""
        return Step(self.model.to(device), tuple(part.to(device) for part in self.batch), self.loss)


class Lambda(nn.Module):
    """A module around a function of its parts and its input."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


def _classes(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def _squares(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return functional.mse_loss(model(*batch[:-1]), batch[-1])


def _labels(*shape: int, classes: int = 5) -> Tensor:
    return (torch.arange(torch.Size(shape).numel()) * 7 % classes).reshape(shape)


def _images(size: int = 16, channels: int = 3) -> Tensor:
    return numbers(2, channels, size, size, seed=901)


def _image_classes(*layers: nn.Module, width: int = 8) -> Step:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))
    return Step(nn.Sequential(*layers, *head), (_images(), _labels(2)), _classes)


def _tokens_step(model: nn.Module, length: int = 12) -> Step:
    return Step(model, (_labels(2, length, classes=31), _labels(2, length)), _classes)


def mlp() -> Step:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))
    return Step(model, (numbers(8, 12, seed=900), _labels(8)), _classes)


def cnn_batch_norm() -> Step:
    return _image_classes(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, bias=False),
        nn.BatchNorm2d(8), nn.ReLU(),
    )  # fmt: skip


def residual() -> Step:
    def block(stride: int) -> nn.Module:
        return Lambda(
            lambda m, x: functional.relu(m.bn2(m.two(functional.relu(m.bn1(m.one(x))))) + m.skip(x)),
            one=nn.Conv2d(8, 8, 3, stride, 1, bias=False), bn1=nn.BatchNorm2d(8),
            two=nn.Conv2d(8, 8, 3, 1, 1, bias=False), bn2=nn.BatchNorm2d(8),
            skip=nn.Identity() if stride == 1 else nn.Conv2d(8, 8, 1, stride, bias=False),
        )  # fmt: skip

    return _image_classes(nn.Conv2d(3, 8, 3, padding=1), block(1), block(2))


def depthwise_excitation() -> Step:
    gate = Lambda(
        lambda m, x: x * functional.hardsigmoid(m.up(functional.relu(m.down(x.mean((2, 3), keepdim=True))))),
        down=nn.Conv2d(8, 4, 1), up=nn.Conv2d(4, 8, 1),
    )  # fmt: skip
    return _image_classes(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), gate,
    )  # fmt: skip


def dense_concatenation() -> Step:
    grow = Lambda(
        lambda m, x: torch.cat([x, m.conv(functional.relu(m.norm(x)))], 1),
        norm=nn.BatchNorm2d(8), conv=nn.Conv2d(8, 8, 3, padding=1, bias=False),
    )  # fmt: skip
    return _image_classes(nn.Conv2d(3, 8, 3), grow, nn.Conv2d(16, 8, 1), nn.AvgPool2d(2))


def unet_group_norm() -> Step:
    def forward(m: Any, x: Tensor) -> Tensor:
        top = functional.silu(m.norm(m.enter(x)))
        below = functional.silu(m.down(top))
        return m.leave(torch.cat([top, m.up(below), functional.interpolate(below, scale_factor=2.0)], 1))

    model = Lambda(
        forward, enter=nn.Conv2d(3, 8, 3, padding=1), norm=nn.GroupNorm(2, 8), down=nn.Conv2d(8, 8, 3, 2, 1),
        up=nn.ConvTranspose2d(8, 8, 2, 2), leave=nn.Conv2d(24, 3, 1),
    )  # fmt: skip
    return Step(model, (_images(), _images().flip(0)), _squares)


def segmentation_dice() -> Step:
    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        logits = functional.interpolate(model(batch[0]), size=(16, 16), mode="bilinear", align_corners=False)
        likely = logits.softmax(1)
        truth = (batch[1][:, None] == torch.arange(5, device=likely.device)[:, None, None]).float()
        overlap = (likely * truth).sum((2, 3))
        dice = 1 - (2 * overlap / (likely.sum((2, 3)) + truth.sum((2, 3)) + 1e-5)).mean()
        return functional.cross_entropy(logits, batch[1]) + dice

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.ELU(), nn.Conv2d(8, 5, 1)
    )
    return Step(model, (_images(), _labels(2, 16, 16)), loss)


def wave_gated() -> Step:
    gated = Lambda(
        lambda m, x: x + m.mix(torch.tanh(m.signal(x)) * torch.sigmoid(m.gate(x))),
        signal=nn.Conv1d(8, 8, 3, padding=2, dilation=2), gate=nn.Conv1d(8, 8, 3, padding=2, dilation=2),
        mix=nn.Conv1d(8, 8, 1),
    )  # fmt: skip
    model = nn.Sequential(nn.Conv1d(2, 8, 1), gated, nn.LeakyReLU(0.2), nn.Conv1d(8, 2, 1))
    return Step(model, (numbers(2, 2, 40, seed=902), numbers(2, 2, 40, seed=903)), _squares)


def video() -> Step:
    model = nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1, bias=False), nn.BatchNorm3d(8), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(8, 5),
    )  # fmt: skip
    return Step(model, (numbers(2, 3, 4, 8, 8, seed=904), _labels(2)), _classes)


def vision_transformer() -> Step:
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.Flatten(2), Lambda(lambda _, x: x.transpose(1, 2)), layer,
                          nn.LayerNorm(16), Lambda(lambda _, x: x.mean(1)), nn.Linear(16, 5))  # fmt: skip
    return Step(model, (_images(), _labels(2)), _classes)


def encoder() -> Step:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return _tokens_step(nn.Sequential(nn.Embedding(31, 16), layer, nn.Linear(16, 5)))


class Attention(nn.Module):
    """Attention in one of the ways that people write it."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


def decoder_fused_attention() -> Step:
    block = Lambda(
        lambda m, x: (y := x + m.attend(m.one(x))) + m.down(functional.gelu(m.up(m.two(y)))),
        one=nn.LayerNorm(16), attend=Attention(16, 2, fused=True), two=nn.LayerNorm(16), up=nn.Linear(16, 32),
        down=nn.Linear(32, 16),
    )  # fmt: skip
    return _tokens_step(nn.Sequential(nn.Embedding(31, 16), block, nn.Linear(16, 5)))


def decoder_by_hand() -> Step:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attend = nn.Embedding(31, 16), Attention(16, 2, fused=False)

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(self.attend(self.embed(x)), self.embed.weight)

    return Step(Tied(), (_labels(2, 12, classes=31), _labels(2, 12, classes=31)), _classes)


def rotary_gated() -> Step:
    def norm(m: Any, x: Tensor) -> Tensor:
        return (
            m.scale.weight[:, 0]
            * x
            * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        )

    def rotated(x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * 0.1 ** torch.arange(8, device=x.device)
        one, two = x.chunk(2, -1)
        return torch.cat(
            [one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1
        )

    def forward(m: Any, tokens: Tensor) -> Tensor:
        x = m.embed(tokens)
        y = m.norm(x)
        q, k, v = rotated(m.query(y)), rotated(m.key(y)), m.value(y)
        x = x + (q @ k.mT / 4).softmax(-1) @ v
        return m.head(x + m.down(functional.silu(m.gate(x)) * m.up(x)))

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False)

    model = Lambda(
        forward, embed=nn.Embedding(31, 16), norm=Lambda(norm, scale=nn.Embedding(16, 1)), query=linear(16, 16),
        key=linear(16, 16), value=linear(16, 16), gate=linear(16, 32), up=linear(16, 32), down=linear(32, 16),
        head=linear(16, 5),
    )  # fmt: skip
    return _tokens_step(model)


def relative_bias_cross_attention() -> Step:
    def forward(m: Any, tokens: Tensor, memory: Tensor) -> Tensor:
        x = m.embed(tokens)
        far = (
            torch.arange(memory.shape[1], device=x.device)[None]
            - torch.arange(x.shape[1], device=x.device)[:, None]
        )
        bias = m.bias(far.clamp(-4, 3) + 4).squeeze(-1)
        scores = torch.einsum("bqd,bkd->bqk", m.query(x), m.key(memory)) + bias
        return m.head(
            torch.einsum("bqk,bkd->bqd", scores.float().softmax(-1).type_as(scores), m.value(memory))
        )

    model = Lambda(
        forward, embed=nn.Embedding(31, 16), bias=nn.Embedding(8, 1), query=nn.Linear(16, 16), key=nn.Linear(16, 16),
        value=nn.Linear(16, 16), head=nn.Linear(16, 4),
    )  # fmt: skip
    batch = (_labels(2, 6, classes=31), numbers(2, 9, 16, seed=905), numbers(2, 6, 4, seed=906))
    return Step(model, batch, _squares)


def _recurrent(layer: nn.Module) -> Step:
    model = nn.Sequential(nn.Embedding(31, 16), layer, Lambda(lambda _, out: out[0]), nn.Linear(16, 5))
    return _tokens_step(model)


def lstm() -> Step:
    return _recurrent(nn.LSTM(16, 16, batch_first=True))


def gru() -> Step:
    return _recurrent(nn.GRU(16, 16, batch_first=True))


def cells() -> Step:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 16)
        for part in x.unbind(1):
            h, c = m.cell(part, (h, c))
        return m.head(h)

    model = Lambda(forward, cell=nn.LSTMCell(8, 16), head=nn.Linear(16, 4))
    return Step(model, (numbers(2, 5, 8, seed=907), numbers(2, 4, seed=908)), _squares)


def experts() -> Step:
    def forward(m: Any, x: Tensor) -> Tensor:
        share = m.router(x).softmax(-1)
        hidden = functional.gelu(torch.einsum("nd,edh->neh", x, m.up.weight.unflatten(0, (4, 16))))
        return (
            torch.einsum("neh,ehd->ned", hidden, m.down.weight.unflatten(0, (4, 32))) * share[..., None]
        ).sum(1)

    up, down = nn.Linear(32, 64, bias=False), nn.Linear(16, 128, bias=False)
    model = Lambda(forward, router=nn.Linear(16, 4), up=up, down=down)
    return Step(model, (numbers(8, 16, seed=909), numbers(8, 16, seed=910)), _squares)


def discriminator() -> Step:
    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return functional.softplus(-model(batch[0])).mean() + functional.binary_cross_entropy_with_logits(
            model(batch[0].flip(-1)).flatten(), batch[1]
        )

    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 4, 2, 1), nn.PReLU(), nn.Flatten(),
        nn.Linear(128, 1),
    )  # fmt: skip
    return Step(model, (_images(), torch.tensor([0.0, 1.0])), loss)


def variational() -> Step:
    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        mean, spread = model.enter(batch[0]).chunk(2, -1)
        out = model.leave(mean + torch.exp(0.5 * spread) * batch[1])
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1).mean()
        return functional.smooth_l1_loss(out, batch[0]) + 0.1 * divergence

    model = nn.ModuleDict({"enter": nn.Linear(12, 16), "leave": nn.Linear(8, 12)})
    model.enter, model.leave = model["enter"], model["leave"]
    return Step(model, (numbers(8, 12, seed=911), numbers(8, 8, seed=912)), loss)


def contrastive() -> Step:
    def loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        one, two = (functional.normalize(model(part), dim=-1) for part in batch[:2])
        logits = model.scale.weight.exp().squeeze() * one @ two.t()
        return (
            functional.cross_entropy(logits, batch[2]) + functional.cross_entropy(logits.t(), batch[2])
        ) / 2

    model = Lambda(lambda m, x: m.net(x), net=nn.Linear(12, 16), scale=nn.Linear(1, 1, bias=False))
    return Step(model, (numbers(8, 12, seed=913), numbers(8, 12, seed=914), torch.arange(8)), loss)


def fourier_mixing() -> Step:
    mixing = Lambda(lambda m, x: x + torch.fft.fft2(m.norm(x).float()).real.type_as(x), norm=nn.LayerNorm(16))
    model = nn.Sequential(nn.Linear(4, 16), mixing, nn.GELU(approximate="tanh"), nn.Linear(16, 4))
    return Step(model, (numbers(2, 8, 4, seed=915), numbers(2, 8, 4, seed=916)), _squares)


def state_space_scan() -> Step:
    def forward(m: Any, x: Tensor) -> Tensor:
        step, drive = functional.softplus(m.step(x)), m.drive(x)
        decay = torch.cumsum(-step, 1)
        return m.leave(torch.exp(decay) * torch.cumsum(drive * torch.exp(-decay), 1))

    model = Lambda(forward, step=nn.Linear(8, 8), drive=nn.Linear(8, 8), leave=nn.Linear(8, 4))
    return Step(model, (numbers(2, 6, 8, seed=917), numbers(2, 6, 4, seed=918)), _squares)


def checkpointed() -> Step:
    inner = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.LayerNorm(16))
    model = Lambda(
        lambda m, x: m.head(checkpoint(m.inner, x, use_reentrant=False)), inner=inner, head=nn.Linear(16, 4)
    )
    return Step(model, (numbers(8, 12, seed=919), numbers(8, 4, seed=920)), _squares)


def graph_messages() -> Step:
    def forward(m: Any, x: Tensor) -> Tensor:
        source, target = torch.arange(20, device=x.device) % 8, torch.arange(20, device=x.device) * 3 % 8
        sent = functional.relu(m.message(x[source]))
        return m.leave(torch.zeros_like(sent[:8]).index_add(0, target, sent) / 3)

    model = Lambda(forward, message=nn.Linear(12, 16), leave=nn.Linear(16, 4))
    return Step(model, (numbers(8, 12, seed=921), numbers(8, 4, seed=922)), _squares)


#: On CUDA these are one kernel where a CPU takes many steps: what enters and leaves modules is compared.
RECURRENT = frozenset({"lstm", "gru", "cells"})
MAKERS = (
    mlp, cnn_batch_norm, residual, depthwise_excitation, dense_concatenation, unet_group_norm, segmentation_dice,
    wave_gated, video, vision_transformer, encoder, decoder_fused_attention, decoder_by_hand, rotary_gated,
    relative_bias_cross_attention, lstm, gru, cells, experts, discriminator, variational, contrastive,
    fourier_mixing, state_space_scan, checkpointed, graph_messages,
)  # fmt: skip


def made(name: str, device: str = "cpu") -> Step:
    """Return a step by name, with its fixed weights."""
    (maker,) = (maker for maker in MAKERS if maker.__name__ == name)
    step = maker()
    fill(step.model)
    return step.to(device)
