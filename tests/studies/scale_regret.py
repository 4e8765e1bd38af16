"""How much more the gradients are off at the advised loss scale than at the best one, on various models.

    python tests/studies/scale_regret.py --report reports/scale_regret.md

Every model runs in FP32 and, at each scale from 2^0 to 2^24, in real fp16 under CUDA's casting rules, from
the same weights, batch and random state. The error of a scale is the L2 distance of all parameters' gradients
from those of FP32, relative to their norm; infinite if one is not finite. The regret of a scale is its error
over the smallest of all. Errors are the RMS over several draws of weights and batch, since on a single one
rounding errors cancel by luck at some scale or other.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from ampcheck.api import check
from ampcheck.diagnose.scaling import ScaleAdvice, advise_scale, gradient_tensors, maxima
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.step import Step, casting_rules
from ampcheck.values.trace import Site

SCALES = range(25)
DEFAULT = 16


@dataclass(frozen=True)
class Case:
    """A step to study, made anew each time."""

    name: str
    build: Callable[[], Step]


@dataclass(frozen=True)
class Errors:
    """Relative L2 distances from the gradients of FP32, infinite where one is not finite."""

    total: float  #: of all parameters together
    single: float  #: of the parameter where it is largest


@dataclass(frozen=True)
class Regret:
    """What was found for one model."""

    name: str
    advice: ScaleAdvice[Site]  #: of the first draw
    advised: Errors
    scales: dict[int, Errors]  #: by log2 scale

    @property
    def best(self) -> int:
        """Return log2 of the scale with the smallest error."""
        return min(SCALES, key=lambda k: self.scales[k].total)

    def of(self, errors: Errors) -> float:
        """Return an error over the smallest."""
        return errors.total / min(one.total for one in self.scales.values())

    def of_single(self, errors: Errors) -> float:
        """Return the same for the parameter that suffers most."""
        return errors.single / min(one.single for one in self.scales.values())


def study(case: Case, draws: int = 3) -> Regret:
    """Return what the advice costs on a model, next to all other scales."""
    found = [drawn(case, seed) for seed in range(draws)]
    return Regret(
        case.name,
        found[0][0],
        together([errors[advice.log2_scale] for advice, errors in found]),
        {k: together([errors[k] for _, errors in found]) for k in SCALES},
    )


def together(draws: list[Errors]) -> Errors:
    """Return the RMS over draws."""
    return Errors(
        math.sqrt(statistics.mean(one.total**2 for one in draws)),
        math.sqrt(statistics.mean(one.single**2 for one in draws)),
    )


def drawn(case: Case, seed: int) -> tuple[ScaleAdvice[Site], dict[int, Errors]]:
    """Return the advice on one draw of weights and batch, and the errors of that scale and all others."""
    torch.manual_seed(seed)
    step = case.build()
    report = check(step.model, step.batch, step.loss)
    advice = advise_scale(gradient_tensors(report), maxima(report), report.format, report.refused_scales)
    before = Snapshot(step.model, step.batch)
    reference = gradients(step, None, 0)
    errors = {}
    for log2_scale in sorted({*SCALES, advice.log2_scale}):
        before.restore()
        errors[log2_scale] = apart(gradients(step, torch.float16, log2_scale), reference)
    before.restore()
    return advice, errors


def gradients(step: Step, dtype: torch.dtype | None, log2_scale: int) -> list[torch.Tensor]:
    """Return the gradients of all parameters without the scale, from a step that nothing records."""
    step.model.zero_grad(set_to_none=True)
    with casting_rules(torch.device("cpu"), dtype), WideCompute():
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = step.loss(step.model, step.batch)
        (loss * torch.tensor(2.0**log2_scale)).backward()
    return [p.grad.double() * 2.0**-log2_scale for p in step.model.parameters() if p.grad is not None]


def apart(found: list[torch.Tensor], reference: list[torch.Tensor]) -> Errors:
    """Return how far gradients are from the reference."""
    pairs = list(zip(found, reference, strict=True))
    squares = [(float((a - b).square().sum()), float(b.square().sum())) for a, b in pairs]
    total = math.sqrt(sum(d for d, _ in squares) / sum(n for _, n in squares))
    # Parameters whose gradient is nothing but FP32's noise have no error worth the name.
    least = 1e-12 * max(n for _, n in squares)
    single = max(math.sqrt(d / n) for d, n in squares if n > least) if math.isfinite(total) else math.inf
    return Errors(total if math.isfinite(total) else math.inf, single)


def mlp(widths: list[int]) -> nn.Sequential:
    """Return linear layers with GELU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class Shrink(torch.autograd.Function):
    """Passes its input on and multiplies the gradient: a chain of these has gradients of known spread."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Chain(nn.Module):
    """Layers between which the gradient changes by a power of two, downwards or upwards."""

    def __init__(self, octaves: float, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.factor = 2.0 ** (octaves / depth)

    def forward(self, x):
        for layer in self.layers:
            x = Shrink.apply(torch.tanh(layer(x)), self.factor)
        return x


def chain(octaves: float, weight: float) -> Callable[[], Step]:
    """Return a chain whose gradients spread over some octaves, and the loss's weight."""

    def loss(model, batch):
        return weight * functional.mse_loss(model(batch).float(), torch.zeros_like(batch))

    return lambda: Step(Chain(octaves), torch.randn(16, 32), loss)


def spread_loss() -> Step:
    """Weigh samples by log-normal weights of 16 octaves: each tensor spreads as wide."""
    weights = 2.0 ** (4 * torch.randn(64, 1) - 8)

    def loss(model, batch):
        return (weights * model(batch).float().square()).mean()

    return Step(mlp([32, 64, 8]), torch.randn(64, 32), loss)


def cnn() -> Step:
    """Return a small CNN with batch normalisation: the gradient of the first bias is noise."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    return Step(model, (torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))), classify)


def classify(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def tiny_mean() -> Step:
    """Average over a million elements: gradients of 1e-6 and less."""

    def loss(model, batch):
        return 1e-3 * functional.mse_loss(model(batch).float(), torch.zeros(1000, 1000))

    return Step(mlp([16, 32, 1000]), torch.randn(1000, 16), loss)


def big_loss() -> Step:
    """Sum squared errors instead of averaging them."""

    def loss(model, batch):
        return functional.mse_loss(model(batch).float() * 10, torch.full((256, 32), 5.0), reduction="sum")

    return Step(mlp([16, 64, 32]), torch.randn(256, 16), loss)


class Contrastive(nn.Module):
    """Two towers and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp([24, 48, 16]), mlp([12, 48, 16])
        self.logit_scale = nn.Parameter(torch.tensor(100.0).log())

    def forward(self, a, b):
        left, right = functional.normalize(self.left(a), dim=-1), functional.normalize(self.right(b), dim=-1)
        return left @ right.T * self.logit_scale.exp()


def contrastive() -> Step:
    """Return a contrastive loss at temperature 0.01."""

    def loss(model, batch):
        logits = model(*batch)
        target = torch.arange(len(logits))
        return functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target)

    return Step(Contrastive(), (torch.randn(8, 24), torch.randn(8, 12)), loss)


class Tagger(nn.Module):
    """An LSTM whose last state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(50, 16),
            nn.LSTM(16, 32, batch_first=True),
            nn.Linear(32, 5),
        )

    def forward(self, ids):
        return self.head(self.lstm(self.embed(ids))[0][:, -1])


def lstm() -> Step:
    """Classify sequences of 40: the first positions get gradients through 40 steps."""
    return Step(Tagger(), (torch.randint(0, 50, (8, 40)), torch.randint(0, 5, (8,))), classify)


class Block(nn.Module):
    """A pre-norm decoder block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.ff = mlp([width, 4 * width, width])

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (layer(y).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.ff(self.norm2(x))


class Decoder(nn.Module):
    """A small language model with tied weights."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        return functional.linear(self.norm(self.blocks(self.embed(ids))), self.embed.weight).flatten(0, 1)


def decoder() -> Step:
    """Predict tokens."""
    return Step(Decoder(), (torch.randint(0, 100, (4, 24)), torch.randint(0, 100, (96,))), classify)


class Autoencoder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp([64, 32, 16]), mlp([8, 32, 64])

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decode(code), mean, log_variance


def vae() -> Step:
    """Reconstruct in sum, with a small weight on the divergence."""

    def loss(model, batch):
        made, mean, log_variance = model(batch)
        divergence = -0.5 * (
            1 + log_variance.float() - mean.float().square() - log_variance.float().exp()
        ).sum(-1)
        return (
            functional.mse_loss(made.float(), batch, reduction="sum") / len(batch) + 1e-4 * divergence.mean()
        )

    return Step(Autoencoder(), torch.randn(32, 64), loss)


def small_targets() -> Step:
    """Regress targets of 1e-6 with a last layer of the same size."""
    model = mlp([16, 32, 1])
    with torch.no_grad():
        model[-1].weight.mul_(1e-6)
        model[-1].bias.zero_()

    def loss(made, batch):
        return functional.mse_loss(made(batch).float(), torch.full((64, 1), 1e-6))

    return Step(model, torch.randn(64, 16), loss)


class TwoHeads(nn.Module):
    """A trunk and two heads of very different losses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.loud, self.soft = mlp([16, 32, 32]), nn.Linear(32, 4), mlp([32, 32, 4])

    def forward(self, x):
        x = self.trunk(x)
        return self.loud(x), self.soft(x.detach())


def two_heads(loud: float, soft: float) -> Callable[[], Step]:
    """Return a model with two heads, their losses weighed."""

    def loss(model, batch):
        one, two = model(batch)
        return loud * one.float().square().mean() + soft * two.float().square().mean()

    return lambda: Step(TwoHeads(), torch.randn(32, 16), loss)


class LayerScale(nn.Module):
    """Residual branches behind a factor of 1e-6."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(mlp([32, 64, 32]) for _ in range(3))
        self.gammas = nn.ParameterList(torch.full((32,), 1e-6) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        for branch, gamma in zip(self.branches, self.gammas, strict=True):
            x = x + gamma * branch(x)
        return self.head(x)


def layer_scale() -> Step:
    """Classify with branches that hardly count yet."""
    return Step(LayerScale(), (torch.randn(64, 32), torch.randint(0, 10, (64,))), classify)


def half_loss() -> Step:
    """Leave the loss in half precision: its gradient, the scale itself, must fit."""

    def loss(model, batch):
        return (model(batch).abs() * 0.01).mean()

    return Step(mlp([16, 32, 4]), torch.randn(32, 16), loss)


CASES = [
    Case("chain over 0 octaves", chain(0, 1.0)),
    Case("chain down 24 octaves", chain(-24, 1.0)),
    Case("chain down 36 octaves", chain(-36, 64.0)),
    Case("chain up 24 octaves", chain(24, 1e-6)),
    Case("samples over 16 octaves", spread_loss),
    Case("CNN with batch norm", cnn),
    Case("mean over a million", tiny_mean),
    Case("summed loss", big_loss),
    Case("contrastive, temperature 0.01", contrastive),
    Case("LSTM over 40 steps", lstm),
    Case("decoder, tied weights", decoder),
    Case("VAE", vae),
    Case("targets of 1e-6", small_targets),
    Case("two heads, 1 and 1e-6", two_heads(1.0, 1e-6)),
    Case("two heads, 1e5 and 1e-9", two_heads(1e5, 1e-9)),
    Case("LayerScale 1e-6", layer_scale),
    Case("loss in half precision", half_loss),
]
#: Enough for every push: tiny, and of one kind each.
QUICK = ["chain down 24 octaves", "summed loss", "contrastive, temperature 0.01", "targets of 1e-6"]


def page(found: list[Regret]) -> str:
    """Return the study as Markdown."""
    advised = [one.of(one.advised) for one in found]
    default = [one.of(one.scales[DEFAULT]) for one in found]
    scales = ["| scale | median regret | worst | models that overflow |", "|---|---|---|---|"]
    scales += [_total("advised", advised), _total("2^16, the default of torch", default)]
    columns = [
        "model",
        "scales that fit",
        "best",
        "advised",
        "error there",
        "regret, advised",
        "regret, 2^16",
    ]
    columns += ["worst parameter, advised", "worst parameter, 2^16"]
    head = [_row(columns), "|" + "---|" * len(columns)]
    command = "Made by `python tests/studies/scale_regret.py --report reports/scale_regret.md`."
    lines = ["# Scale regret", "", command, "", *_explained(), "", *scales, "", *head, *map(_line, found), ""]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(one: Regret) -> str:
    default = one.scales[DEFAULT]
    errors = [one.advised.total, one.of(one.advised), one.of(default)]
    errors += [one.of_single(one.advised), one.of_single(default)]
    return _row(
        [one.name, _window(one), f"2^{one.best}", f"2^{one.advice.log2_scale}", *map(_number, errors)]
    )


def _explained() -> list[str]:
    text = """Each model runs one step in FP32 and, at every loss scale from 2^0 to 2^24, in fp16 under CUDA's
casting rules on the CPU, from the same weights, batch and random state. *Error* is the L2 distance of all
parameters' gradients from FP32's, over their norm; it is infinite where one is not finite. *Regret* is the
error at a scale over the smallest error at any of them. Errors are the RMS over three draws of weights and
batch, each with its own advice, of which the first is shown. The advice sees one FP32 step, one fp16 step and
which larger scales overflowed, nothing else. The last two columns are the same ratio for the parameter that
suffers most, which a norm over all parameters hides."""
    return text.splitlines()


def _window(one: Regret) -> str:
    window = one.advice.window
    return f"2^{window.low} to 2^{window.high}" if window.fits else f"none: {-window.octaves} octaves missing"


def _total(name: str, regrets: list[float]) -> str:
    infinite = sum(math.isinf(regret) for regret in regrets)
    numbers = [_number(statistics.median(regrets)), _number(max(regrets)), f"{infinite} of {len(regrets)}"]
    return _row([name, *numbers])


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3f}" if value >= 0.1 else f"{value:.1e}"


def main() -> None:
    """Study all models and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, help="the Markdown file to write; printed if left out")
    parser.add_argument("--only", help="models whose name contains this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = page([study(case) for case in CASES if (arguments.only or "") in case.name])
    if arguments.report:
        arguments.report.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
