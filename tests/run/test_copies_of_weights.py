"""Optimizers that step FP32 copies of weights in half precision, as DeepSpeed, Megatron and apex do: what scales?"""

import pytest
import torch
from builders import answer
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

SCALE = 64.0


def train(way, dtype=torch.float16, scale=SCALE):
    torch.manual_seed(0)
    session = Session(Schedule())
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(dtype)
        own = list(model.parameters())
        copies = [nn.Parameter(p.detach().float().clone()) for p in own]
        flat = nn.Parameter(torch.cat([copy.detach().flatten() for copy in copies]))
        optimizer = torch.optim.SGD([flat] if way == "flat" else copies, 0.01)
        if way == "moved":
            for parameter, copy in zip(own, copies, strict=True):
                parameter.register_post_accumulate_grad_hook(lambda p, copy=copy: move(p, copy))
        for _ in range(4):
            loss = model(torch.randn(16, 8).to(dtype)).float().square().mean()
            (loss if way in ("only divided", "plain", "flat") else loss * torch.tensor(scale)).backward()
            if way == "flat":
                flat.grad = torch.cat([p.grad.float().flatten() for p in own]) / scale
            elif way != "moved":
                for parameter, copy in zip(own, copies, strict=True):
                    copy.grad = parameter.grad.float() / (1.0 if way == "plain" else scale)
            else:
                for copy in copies:
                    copy.grad = copy.moved / scale
            optimizer.step()
            model.zero_grad()
            for parameter, copy in zip(own, copies, strict=True):
                parameter.data.copy_(copy.data)
    return session.report("script.py")


def move(parameter, copy):
    """Take a gradient away within the backward, as Megatron does."""
    copy.moved, parameter.grad = parameter.grad.float(), None


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("moved", "the loss is multiplied by 2^6; what divides its gradients was not seen"),
        ("only divided", "gradients are divided by 2^6 before the step; what multiplied them was not seen"),
        (
            "flat",
            "the optimizer steps copies of float16 weights; what their gradients are divided by was not seen",
        ),
    ],
)
def test_a_scale_of_which_half_was_seen_is_unknown_and_nothing_is_safe(way, words):
    report = train(way)
    assert report.loop.scaling == words
    word, sentence = answer(report)
    assert word is not Health.SAFE
    assert sentence.startswith(f"the loss scale is unknown: {words}")


def test_an_overflow_at_an_unknown_scale_is_not_said_of_every_scale():
    report = train("moved", scale=2.0**24)
    assert report.verdict.word is Health.UNSAFE
    messages = [finding.message for finding in report.findings if finding.severity is Severity.ERROR]
    assert messages
    assert not any("every loss scale" in message for message in messages)


def test_a_scale_of_which_both_halves_were_seen_is_known():
    report = train("scaled", scale=1024.0)
    assert (report.loop.scaling, report.log2_scale) == ("", 10)
    assert report.loop.first_scales == {"scale by hand": 1024.0}


def test_gradients_that_nobody_scales_are_no_riddle():
    assert train("plain").loop.scaling == ""
    assert train("flat", torch.bfloat16, scale=1.0).loop.scaling == ""


@pytest.mark.parametrize("way", ["plain", "scaled", "flat", "moved"])
def test_half_weights_whose_copies_are_stepped_in_fp32_are_as_they_should_be(way):
    assert "AMP302" not in {finding.code for finding in train(way).findings}
