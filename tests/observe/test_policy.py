"""Policies against the dispatcher: what each registered kernel does when it is called."""

import sys

import pytest
import torch

from ampcheck.observe.cuda_on_cpu.policy import (
    CastPolicy,
    casting_policy,
    header_policy,
    measured_policy,
    refusal,
    registered,
)
from ampcheck.observe.cuda_on_cpu.probing import forwarded

CUDNN_RNN = "aten::_cudnn_rnn"


def test_every_registered_operator_has_a_policy():
    assert casting_policy().keys() == registered("cuda")


def test_every_policy_is_what_the_kernel_does():
    policy = {name: kind for name, kind in casting_policy().items() if name != CUDNN_RNN}
    assert {name: measured_policy(name) for name in policy} == policy


def test_the_header_lists_nothing_that_is_not_registered():
    assert header_policy().keys() <= registered("cuda")
    assert set(header_policy().values()) == set(CastPolicy) - {CastPolicy.BANNED, CastPolicy.HALF}


def test_the_header_leaves_some_open():
    left = registered("cuda") - header_policy().keys()
    assert {"aten::binary_cross_entropy", "aten::cudnn_convolution"} <= left


@pytest.mark.skipif(CUDNN_RNN not in registered("cuda"), reason="this torch is built without cuDNN")
def test_recurrent_layers_run_in_float16_under_bfloat16_too():
    # Half weights need no copy into cuDNN's buffer, so the kernel can be followed. The input comes first.
    dtypes = (torch.float32, *[torch.float16] * 3, torch.float32, torch.float32)
    seen = forwarded(
        "cuda", CUDNN_RNN, dtypes, torch.bfloat16, weight_stride0=4, proj_size=0, dropout_state=None
    )
    assert set(seen.tensors) == {torch.float16}
    assert casting_policy()[CUDNN_RNN] is CastPolicy.HALF


def test_the_ban_is_said_in_torchs_words():
    message = refusal("aten::binary_cross_entropy")
    assert message.startswith(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
    )
    with pytest.raises(ValueError, match="expected an operator that autocast bans on cuda, got 'aten::mm'"):
        refusal("aten::mm")


def test_without_headers_nothing_is_listed(monkeypatch, tmp_path):
    header_policy.cache_clear()
    monkeypatch.setattr(sys.modules["torch"], "__file__", str(tmp_path / "__init__.py"))
    try:
        assert header_policy() == {}
    finally:
        header_policy.cache_clear()


def test_probing_leaves_no_kernel_and_no_autocast_state():
    names = ("aten::mm", "aten::norm.Scalar", "aten::binary_cross_entropy")
    before = [torch._C._dispatch_dump(name) for name in names], torch.is_autocast_enabled("cuda")
    for name in names:
        measured_policy(name)
    assert ([torch._C._dispatch_dump(name) for name in names], torch.is_autocast_enabled("cuda")) == before
