"""Dropout drops the same numbers in every precision, so that two runs of a step can be compared."""

import pytest
import torch
from torch import nn

from ampcheck.observe import same_draws
from ampcheck.observe.cuda_on_cpu.dispatcher import Installation

F = nn.functional


@pytest.fixture
def on_cpu():
    """The kernels of CUDA, installed for the CPU instead."""
    kernels = {
        "CPU": {"aten::native_dropout": same_draws.dropout_on("CPU")},
        "AutogradCPU": {"aten::scaled_dot_product_attention": same_draws.attention},
    }
    with Installation(lambda: kernels).used():
        yield


def dropped(dtype, values=None, train=True):
    torch.manual_seed(3)
    values = torch.linspace(0.5, 1.5, 999).to(dtype) if values is None else values
    values.requires_grad_()
    out, mask = torch.native_dropout(values, 0.25, train)
    out.float().sum().backward()
    return values.detach(), out.detach(), mask, values.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_mask_is_that_of_float32_and_the_rest_is_dropouts(dtype, on_cpu):
    values, out, mask, grad = dropped(dtype)
    if dtype is not torch.float64:
        assert torch.equal(mask, dropped(torch.float32)[2])
    assert 0.2 < 1 - mask.double().mean() < 0.3
    assert out.dtype == grad.dtype == dtype
    scaled = (values.double() * mask / 0.75).to(dtype)
    torch.testing.assert_close(out, scaled, rtol=torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(grad, (mask.double() / 0.75).to(dtype), rtol=torch.finfo(dtype).eps, atol=0)


def test_in_float32_nothing_changes():
    bare = dropped(torch.float32)
    with Installation(lambda: {"CPU": {"aten::native_dropout": same_draws.dropout_on("CPU")}}).used():
        ours = dropped(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(bare, ours, strict=True))


def test_layout_and_evaluation_are_kept(on_cpu):
    values = torch.rand(4, 6, 5, 5).half().to(memory_format=torch.channels_last)
    _, out, mask, _ = dropped(torch.float16, values)
    assert out.stride() == mask.stride() == values.stride()
    _, out, mask, _ = dropped(torch.float16, values.detach(), train=False)
    assert torch.equal(out, values)


def test_attention_drops_nothing(on_cpu):
    query = torch.randn(2, 2, 8, 16)
    plain = F.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert torch.equal(F.scaled_dot_product_attention(query, query, query, None, 0.5, is_causal=True), plain)
    assert torch.equal(
        F.scaled_dot_product_attention(query, query, query, dropout_p=0.5, is_causal=True), plain
    )


def test_the_kernels_are_shared_and_leave():
    installed = []

    def kernels():
        installed.append(1)
        return {"AutogradCPU": {"aten::scaled_dot_product_attention": same_draws.attention}}

    one = Installation(kernels)
    query = torch.randn(1, 2, 8, 16)

    def drops():
        return not torch.equal(
            *(F.scaled_dot_product_attention(query, query, query, dropout_p=p) for p in (0.0, 0.9))
        )

    with one.used():
        with one.used():
            assert not drops()
        assert not drops()
    assert drops()
    assert installed == [1]


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch was built without CUDA")
def test_cuda_gets_its_kernels_and_loses_them():
    def dump():
        return torch._C._dispatch_dump("aten::native_dropout")

    before = dump()
    with same_draws.same_draws():
        assert dump() != before
    assert dump() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_masks_are_the_same():
    def mask(dtype):
        torch.manual_seed(3)
        return F.dropout(torch.ones(64, 64, device="cuda", dtype=dtype), 0.5) == 0

    assert not torch.equal(mask(torch.float16), mask(torch.float32))  # which is why
    with same_draws.same_draws():
        assert torch.equal(mask(torch.float16), mask(torch.float32))
