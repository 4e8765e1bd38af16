"""Three models from the code to the healed output: a VAE decoder, a T5 encoder, a rotary model in bf16.

python tests/studies/inference_page.py    writes reports/inference.md and its pictures
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target, no_loss
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings

REPORTS = Path(__file__).parents[2] / "reports"
_CELL, _GAP, _MOST = 8, 24, 32
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class ResBlock(nn.Module):
    """A residual block of a decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(nn.functional.silu(self.norm(x)))


class Decoder(nn.Module):
    """Latents to a picture; what the blocks hand each other leaves fp16's range."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.up, self.norm = nn.ModuleList(ResBlock(width) for _ in range(3)), nn.GroupNorm(4, width)
        with torch.no_grad():
            for block in self.up:
                block.conv.weight.mul_(3e5)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        h = self.first(z)
        for block in self.up:
            h = nn.functional.interpolate(block(h), scale_factor=2.0)
        return self.last(nn.functional.silu(self.norm(h)))


class VAE(nn.Module):
    """A decoder behind its own scale."""

    def __init__(self) -> None:
        super().__init__()
        self.post_quant, self.decoder = nn.Conv2d(4, 4, 1), Decoder()

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant(z))


class RMSNorm(nn.Module):
    """A norm as T5 has it: it goes back to half precision only where its weight is held in it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(self.weight.dtype)


class FeedForward(nn.Module):
    """The part of T5 whose wo transformers keeps in FP32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wi, self.wo = RMSNorm(width), nn.Linear(width, 96), nn.Linear(96, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.wo(torch.relu(self.wi(self.norm(x))).to(self.wo.weight.dtype))


class Encoder(nn.Module):
    """A T5-like encoder with a large wo."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(60, width), RMSNorm(width)
        self.block = nn.ModuleList(FeedForward(width) for _ in range(3))
        with torch.no_grad():
            self.block[1].wo.weight.mul_(4e5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.block:
            x = block(x)
        return self.norm(x)


class Rotary(nn.Module):
    """The angles of positions; .float() here comes too late."""

    def __init__(self, width: int) -> None:
        super().__init__()
        exponents = torch.arange(0, width, 2).float() / width
        self.register_buffer("inv_freq", 1e4**-exponents, persistent=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None].float() * self.inv_freq.float()
        return torch.cat([angles.cos(), angles.sin()], -1)


class Rotated(nn.Module):
    """A model that reads its positions from them."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.rotary, self.head = nn.Embedding(60, width), Rotary(width), nn.Linear(width, width)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(x * self.rotary(positions).to(x.dtype))


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs and the precision that it is cast to."""

    name: str
    title: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    precision: str
    shown: tuple[type, ...]  #: the classes that the page prints


CASES = (
    Case(
        "vae",
        "A VAE decoder in fp16",
        VAE,
        lambda: {"z": torch.randn(1, 4, 6, 6)},
        "fp16",
        (ResBlock, Decoder),
    ),
    Case(
        "t5",
        "A T5 encoder in fp16",
        Encoder,
        lambda: {"ids": torch.arange(48)[None]},
        "fp16",
        (RMSNorm, FeedForward),
    ),
    Case(
        "rotary",
        "A rotary model in bf16",
        Rotated,
        lambda: {"ids": torch.arange(48)[None] % 60, "positions": torch.arange(6000, 6048)},
        "bf16",
        (Rotary,),
    ),
)


def outputs(case: Case) -> tuple[Report, list[torch.Tensor]]:
    """Return the report of a case, and what the model gives in FP32, cast, and with the plan."""
    torch.manual_seed(0)
    model, inputs = case.make().eval(), case.inputs()
    target = Target(case.name, model, [inputs], no_loss, infers=True)
    report = audit(target, Settings(precision=case.precision, mode="infer", cast="weights"))
    dtype = _DTYPES[case.precision]
    low = {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}
    assert report.plan is not None
    with torch.no_grad():
        wide = model(**inputs)
        cast = copy.deepcopy(model).to(dtype)(**low)
        healed = report.plan.apply(copy.deepcopy(model))(**low)
    return report, [t.float()[0] for t in (wide, cast, healed)]


def picture(tensors: list[torch.Tensor]) -> str:
    """Return three panels as SVG: FP32, cast, healed; what is no finite number is red."""
    panels = [t.reshape(-1, t.shape[-1])[:_MOST, :_MOST] for t in tensors]
    low, high = (float(f(panels[0])) for f in (torch.min, torch.max))
    rows, columns = panels[0].shape
    width, height = 3 * columns * _CELL + 2 * _GAP, rows * _CELL + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    ]
    for at, (name, panel) in enumerate(zip(("FP32", "cast", "cast with the plan"), panels, strict=True)):
        left = at * (columns * _CELL + _GAP)
        parts.append(f'<text x="{left}" y="13" font-size="13" fill="#777">{name}</text>')
        cells: dict[str, list[str]] = {}
        for y, row in enumerate(panel.tolist()):
            for x, value in enumerate(row):
                corner = f"M{left + x * _CELL} {20 + y * _CELL}h{_CELL}v{_CELL}h-{_CELL}z"
                cells.setdefault(_color(value, low, high), []).append(corner)
        parts += [f'<path fill="{fill}" d="{"".join(corners)}"/>' for fill, corners in cells.items()]
    return "".join([*parts, "</svg>\n"])


def _color(value: float, low: float, high: float) -> str:
    if value - value != 0:
        return "#c22"
    level = 8 * round(31 * min(1.0, max(0.0, (value - low) / (high - low))))
    return f"#{level:02x}{level:02x}{level:02x}"


def section(case: Case) -> str:
    """Return what the page says of a case, once its picture is written."""
    report, tensors = outputs(case)
    (REPORTS / f"inference.{case.name}.svg").write_text(picture(tensors), encoding="utf-8")
    found = report.findings[0]
    settled, planned = report.outcomes["settled"], report.outcomes["planned"]
    code = "\n\n".join(inspect.getsource(kind).rstrip() for kind in case.shown)
    ways = "\n".join(
        f"| {name.replace('-', ' ')} | {one.words} |" for name, one in report.outcomes.items() if "-" in name
    )
    kept = ", ".join(f"`{name}`" for name in report.plan.fp32_modules) if report.plan else ""
    rule = {"cast-back": "cast back", "promote": "left in FP32"}[report.plan.outputs if report.plan else ""]
    return f"""## {case.title}

```python
{code}
```

`ampcheck model.py --mode infer --cast weights --precision {case.precision}`

> **error[{found.code}] {found.name}**: {found.message}

| run | what it gives |
|---|---|
{ways}

Keep {kept} in FP32, with results {rule}: {settled.words} → {planned.words}. The lines to paste:

```python
{report.patch.rstrip()}
```

![FP32, cast, and cast with the plan](inference.{case.name}.svg)
"""


def page(keys: str, costs: str) -> str:
    """Return the page, with the tables of answer keys and of costs."""
    told = "\n".join(section(case) for case in CASES)
    return f"""# Inference: three models from the code to the healed output

Written by `python tests/studies/inference_page.py`: small models with random weights, made large where trained
ones are. In the pictures the first panel is FP32, the second the model cast, the third the model cast with the plan's
modules in FP32; red is no finite number.

{told}
## Answer keys of transformers, found again

Types that build small, with realistic numbers planted where the library's own list says: router biases around 16 in
bf16, which round to steps of 1/8, and a `wo` of 4e4 in T5, whose own clamp catches the infinity. `named` is the module
of the first error.

{keys}

## What watching costs

CPU time of a forward that is recorded, as a multiple of the same forward alone (products of halves summed in FP32 both
times), the median of seven rounds in turn, on a machine that others used too.

{costs}
"""


def main() -> None:
    """Write the page and its pictures."""
    import inference_cost
    from answer_keys import rows, table

    torch.set_num_threads(1)
    (REPORTS / "inference.md").write_text(page(table(list(rows())), inference_cost.table()), encoding="utf-8")


if __name__ == "__main__":
    main()
