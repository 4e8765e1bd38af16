"""Policies against the dispatcher: what each registered kernel does when it is called."""

import sys

import pytest
import torch

from ampcheck.observe.cuda_on_cpu.policy import (
    BACKENDS,
    CastPolicy,
    casting_policy,
    derived,
    foreign,
    header_policy,
    measured_policy,
    refusal,
    registered,
    unexplained,
)
from ampcheck.observe.cuda_on_cpu.probing import forwarded

CUDNN_RNN = "aten::_cudnn_rnn"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_registered_operator_has_a_policy(backend):
    assert unexplained(backend) == frozenset()
    assert casting_policy(backend).keys() == registered(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_policy_is_what_the_kernel_does(backend):
    policy = {name: kind for name, kind in casting_policy(backend).items() if name != CUDNN_RNN}
    assert {name: measured_policy(backend, name) for name in policy} == policy


def test_the_header_lists_nothing_that_is_not_registered():
    assert header_policy().keys() <= registered("cuda")
    assert set(header_policy().values()) == set(CastPolicy) - {CastPolicy.BANNED, CastPolicy.HALF}


def test_what_the_header_leaves_open_is_listed_with_a_reason():
    reasons = derived("cuda")
    assert reasons.keys() == registered("cuda") - header_policy().keys()
    assert {
        "aten::binary_cross_entropy",
        "aten::cudnn_convolution",
        "aten::cudnn_convolution_transpose",
    } <= reasons.keys()
    assert all(reason.startswith("measured") for name, reason in reasons.items() if name != CUDNN_RNN)


def test_mps_differs_from_cuda_where_its_own_list_does():
    cuda, mps = casting_policy("cuda"), casting_policy("mps")
    assert (cuda["aten::softmax.int"], mps["aten::softmax.int"]) == (
        CastPolicy.FP32_SET_DTYPE,
        CastPolicy.FP32,
    )
    assert "aten::batch_norm" not in cuda
    assert mps["aten::batch_norm"] is CastPolicy.FP32


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
    message = refusal("cuda", "aten::binary_cross_entropy")
    assert message.startswith(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
    )
    with pytest.raises(ValueError, match="expected an operator that autocast bans on cuda, got 'aten::mm'"):
        refusal("cuda", "aten::mm")


def test_other_libraries_operators_are_listed():
    library = torch.library.Library("ampcheck_test", "DEF")
    try:
        library.define("half_only(Tensor x) -> Tensor")
        library.impl("half_only", lambda x: x, "AutocastCUDA")
        assert "ampcheck_test::half_only" in foreign("cuda") - foreign("xpu")
        library.impl("half_only", lambda x: x, "AutocastCPU")
        assert "ampcheck_test::half_only" not in foreign("cuda")
    finally:
        library._destroy()


def test_an_unknown_back_end_is_refused():
    with pytest.raises(ValueError, match="expected one of cuda, xpu, mps, got backend 'tpu'"):
        casting_policy("tpu")


def test_without_headers_everything_is_measured(monkeypatch, tmp_path):
    expected = casting_policy("xpu")
    header_policy.cache_clear()
    monkeypatch.setattr(sys.modules["torch"], "__file__", str(tmp_path / "__init__.py"))
    try:
        assert header_policy() == {}
    finally:
        header_policy.cache_clear()
    assert {name: measured_policy("xpu", name) for name in expected} == expected


def test_probing_leaves_no_kernel_and_no_autocast_state():
    names = ("aten::mm", "aten::norm.Scalar", "aten::binary_cross_entropy")
    before = [torch._C._dispatch_dump(name) for name in names], torch.is_autocast_enabled("cuda")
    for name in names:
        measured_policy("cuda", name)
    assert ([torch._C._dispatch_dump(name) for name in names], torch.is_autocast_enabled("cuda")) == before
