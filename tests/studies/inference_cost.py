"""What watching a forward costs: a recorded forward beside the same one alone, in turn."""

import statistics
import time

import torch
from torch import nn

from ampcheck.inference.casting import Way
from ampcheck.inference.lab import Subject
from ampcheck.observe.cuda_on_cpu.wide import WideCompute, execute
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.pair import SAMPLES
from ampcheck.targets.losses import call_model

ROUNDS = 7
WAYS = {"FP32": Way(), "bf16 autocast": Way(torch.bfloat16)}


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """Return resnet18 and four pictures."""
    import torchvision

    return torchvision.models.resnet18().eval(), torch.randn(4, 3, 224, 224)


def transformer(width: int = 512, layers: int = 12) -> tuple[nn.Module, torch.Tensor]:
    """Return twelve layers, and four sequences of 256 tokens."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval(), torch.randn(4, 256, width)


def ratio(model: nn.Module, x: torch.Tensor, way: Way, rounds: int = ROUNDS) -> float:
    """Return the CPU time of a watched forward as a multiple of the plain one's, the median of rounds in turn."""
    subject = Subject(model, [x], call_model)

    def plain() -> None:
        with subject.ready(way), WideCompute():
            model(x)

    def watched() -> None:
        recorder = Recorder(model, samples=SAMPLES, execute=execute)
        with subject.ready(way), recorder:
            model(x)
        recorder.fetch()

    def seconds(run) -> float:
        begun = time.process_time()
        run()
        return time.process_time() - begun

    plain(), watched()
    return statistics.median([1 / (seconds(plain) / seconds(watched)) for _ in range(rounds)])


def table() -> str:
    """Return the ratios as Markdown."""
    models = {
        "resnet18, 4 pictures of 224": cnn,
        "transformer, 12 layers of 512, 4 x 256 tokens": transformer,
    }
    lines = [f"| forward | {' | '.join(WAYS)} |", "|---|" + "---:|" * len(WAYS)]
    for name, make in models.items():
        torch.manual_seed(0)
        made = make()
        lines.append(f"| {name} | {' | '.join(f'{ratio(*made, way):.2f}' for way in WAYS.values())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
