"""What an audit says that low precision buys is what the bench predicts, and the model is as it was."""

import pytest
import torch
from torch import nn

from ampcheck.bench.gpu_time import rates
from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.bought import GPU, with_bought
from ampcheck.renderers.next_step import answer_lines
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings


class Looks(nn.Linear):
    """A layer that goes by its numbers."""

    def forward(self, x):
        return super().forward(x) if x.sum().item() > -1e9 else x


def target(layer=nn.Linear):
    torch.manual_seed(0)
    model = nn.Sequential(layer(64, 256), nn.GELU(), nn.BatchNorm1d(256), nn.Linear(256, 10))
    batch = torch.randn(8, 64), torch.randint(0, 10, (8,))
    return Target(
        "t", model, [batch], lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
    )


def audited(made, **settings):
    return with_bought(audit(made, Settings(**settings)), made)


@pytest.mark.parametrize(("precision", "row"), [("fp16", "amp"), ("bf16", "bf16")])
def test_it_is_what_the_bench_predicts(precision, row):
    report = audited(target(), precision=precision)
    request = Request(("fp32", row), ("memory",), gpus=(GPU,))
    case = Bencher(lambda _batch_size, _seed: target(), request).run(Bench("t")).cases[0]
    base, low = case.row("fp32"), case.row(row)
    bought = report.bought
    assert (bought.batch_size, bought.gpu) == (8, GPU)
    assert bought.reference_peak == base.memory.predicted.peak_bytes
    assert bought.peak == low.memory.predicted.peak_bytes
    assert bought.faster == pytest.approx(rates(case, low, low.gpu_times[0]))
    line = dict(answer_lines(report))["What it buys:"]
    assert line.startswith("predicted on H100, 8 samples: ")


def test_the_model_has_its_own_tensors_back():
    made = target()
    report = audit(made, Settings())
    held = {name: (tensor, tensor.clone()) for name, tensor in made.model.state_dict(keep_vars=True).items()}
    modules = {id(module): dict(module.__dict__) for module in made.model.modules()}
    assert with_bought(report, made).bought is not None
    for name, tensor in made.model.state_dict(keep_vars=True).items():
        assert tensor is held[name][0]
        assert torch.equal(tensor, held[name][1])
    for module in made.model.modules():
        assert module.__dict__ == modules[id(module)]


def test_nothing_is_said_of_a_model_that_looks_at_its_numbers_or_of_forwards_alone():
    assert audited(target(Looks)).bought is None
    assert audited(target(), mode="infer").bought is None


def test_recurrent_layers_have_a_memory_and_no_time():
    model = nn.LSTM(8, 8)
    made = Target("t", model, [torch.randn(5, 2, 8)], lambda model, batch: model(batch)[0].square().mean())
    report = audited(made)
    assert report.bought.gpu == ""
    assert dict(answer_lines(report))["What it buys:"].startswith("predicted on a GPU, 5 samples: ")
