"""Rows of a model that is cast itself. The witness is torch: `.to(dtype)` on a copy, against FP64."""

import copy

import pytest
import torch
from bench_models import perceptron

from ampcheck.bench.ledger import BLOCK
from ampcheck.bench.markdown import to_markdown
from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench
from ampcheck.bench.running.bench import Bencher

DTYPES = {"half": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module", params=["train", "infer"])
def bench(request):
    asked = Request(
        precisions=("fp32", "bf16", *DTYPES),
        parts=("time", "memory", "accuracy"),
        modes=(request.param,),
        steps=3,
        seeds=1,
        budget=0.2,
    )
    return request.param, Bencher(perceptron, asked).run(Bench("perceptron"))


@torch.no_grad()
def by_hand(dtype):
    """Return the relative error of the cast model's outputs, products of halves being summed in FP32 or wider."""
    model, x = perceptron().model, perceptron().batch(0)[0]
    wide = copy.deepcopy(model).double()(x.double())
    low = copy.deepcopy(model).to(dtype).double()
    hidden = torch.relu(low[0](x.to(dtype).double()).to(dtype))
    out = low[2](hidden.double()).to(dtype).double()
    return float((out - wide).norm() / wide.norm())


@pytest.mark.parametrize("name", DTYPES)
def test_outputs_agree_as_those_of_a_model_cast_by_hand(bench, name):
    _, found = bench
    row = found.cases[0].row(name)
    assert row.status == "ok"
    assert row.one_step.outputs.relative_rms == pytest.approx(by_hand(DTYPES[name]), rel=0.1)


@pytest.mark.parametrize("name", DTYPES)
def test_weights_take_half_the_memory_and_are_timed(bench, name):
    mode, found = bench
    case = found.cases[0]
    blocks = sum(-(-2 * p.numel() // BLOCK) * BLOCK for p in perceptron().model.parameters())
    assert case.row(name).memory.predicted.roles["parameters"] == blocks
    assert case.row(name).time.median > 0
    assert (case.row(name).one_step.gradients is None) == (mode == "infer")


def test_the_page_says_what_was_compared(bench):
    mode, found = bench
    text = to_markdown(found)
    assert "the model itself cast to fp16, as .half() does" in text
    assert ("output error" in text) == (mode == "infer")
