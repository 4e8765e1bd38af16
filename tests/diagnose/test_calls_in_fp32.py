"""The one call at a line that is advised in FP32: it is a call that runs, and gives what FP32 gives."""

import ast

import pytest
import torch

from ampcheck.diagnose.rules.lines_to_change import in_fp32

CALLS = [
    "torch.sigmoid(x)",
    "torch.sigmoid(x + x)",
    "torch.softmax(x * 2, dim=-1)",
    "torch.softmax(x, -1)",
    "x.sigmoid()",
    "(x - 1).exp()",
    "x.softmax(dim=0)",
    "torch.nn.functional.softplus(x[1:], beta=2)",
]


@pytest.mark.parametrize("call", CALLS)
def test_the_call_that_is_advised_gives_what_it_gives_of_fp32_numbers(call):
    advised, _, was = in_fp32(ast.parse(call, mode="eval").body).partition("  # in place of ")
    x = torch.linspace(-3, 6, 8).bfloat16()
    names = {"torch": torch}
    low, high = (eval(text, {**names, "x": x}) for text in (was, advised))
    wide = eval(was, {**names, "x": x.float()})
    assert (low.dtype, high.dtype) == (torch.bfloat16, torch.float32)
    if "x + x" in call or "x - 1" in call or "x * 2" in call:
        assert torch.allclose(high, wide, rtol=0.05, atol=0.05)  # what is given to it was rounded before
    else:
        assert torch.equal(high, wide)


def test_a_call_of_unknown_numbers_is_not_written_anew():
    for call in ("torch.sigmoid(*x)", "torch.sigmoid(input=x)"):
        assert in_fp32(ast.parse(call, mode="eval").body) == ""
