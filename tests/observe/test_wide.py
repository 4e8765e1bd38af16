"""Widened operators against float64, the CPU's own half kernels, and torch's shape inference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from ampcheck.observe.cuda_on_cpu import wide
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute, execute

aten = torch.ops.aten
LOW = (torch.float16, torch.bfloat16)
CONVOLUTION = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]


def spread(*shape):
    """Values over several powers of two, so that rounding and cancellation both happen."""
    return torch.randn(*shape) * torch.exp2(torch.randint(-4, 4, shape).float())


# What to call, its tensors by size n, and the other arguments. Linear in each tensor, which the bound needs.
LINEAR = {
    "mm": (aten.mm.default, lambda n: (spread(3, n), spread(n, 4)), []),
    "addmm": (aten.addmm.default, lambda n: (spread(4), spread(3, n), spread(n, 4)), []),
    "bmm": (aten.bmm.default, lambda n: (spread(2, 3, n), spread(2, n, 4)), []),
    "baddbmm": (aten.baddbmm.default, lambda n: (spread(2, 3, 4), spread(2, 3, n), spread(2, n, 4)), []),
    "addbmm": (aten.addbmm.default, lambda n: (spread(3, 4), spread(2, 3, n), spread(2, n, 4)), []),
    "mv": (aten.mv.default, lambda n: (spread(3, n), spread(n)), []),
    "addmv": (aten.addmv.default, lambda n: (spread(3), spread(3, n), spread(n)), []),
    "dot": (aten.dot.default, lambda n: (spread(n), spread(n)), []),
    "vdot": (aten.vdot.default, lambda n: (spread(n), spread(n)), []),
    "convolution": (
        aten.convolution.default,
        lambda n: (spread(2, n, 5, 5), spread(3, n, 3, 3), spread(3)),
        CONVOLUTION,
    ),
    "transposed convolution": (
        aten.convolution.default,
        lambda n: (spread(2, n, 4, 4), spread(n, 3, 2, 2), spread(3)),
        [[2, 2], [0, 0], [1, 1], True, [0, 0], 1],
    ),
    "convolution_backward": (
        aten.convolution_backward.default,
        lambda n: (spread(2, 3, 5, 5), spread(2, n, 5, 5), spread(3, n, 3, 3)),
        [[3], *CONVOLUTION, [True, True, True]],
    ),
}  # fmt: skip
LONGEST_SUM = {"convolution": 9, "convolution_backward": 50, "transposed convolution": 4, "addbmm": 2}


def results(value):
    return list(value) if isinstance(value, tuple | list) else [value]


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 999), low=st.sampled_from(LOW))
@pytest.mark.parametrize("name", LINEAR)
def test_results_are_the_exact_ones_rounded_once(name, size, seed, low):
    torch.manual_seed(seed)
    func, make, rest = LINEAR[name]
    tensors = [tensor.to(low) for tensor in make(size)]
    ours = results(execute(func, (*tensors, *rest), {}))
    exact = results(func(*(tensor.double() for tensor in tensors), *rest))
    magnitude = results(func(*(tensor.double().abs() for tensor in tensors), *rest))
    # A float32 sum of n products errs by at most about n half-ulps of the sum of magnitudes, in any order.
    terms = max(size, 8) * LONGEST_SUM.get(name, 1) + 2
    finfo = torch.finfo(low)
    for got, want, large in zip(ours, exact, magnitude, strict=True):
        assert got.dtype is low
        half_ulp = torch.maximum(
            want.abs() * finfo.eps / 2, torch.tensor(finfo.smallest_normal * finfo.eps / 2)
        )
        assert ((got.double() - want).abs() <= 1.01 * half_ulp + terms * 2.0**-24 * large).all()


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", LINEAR)
def test_dtypes_shapes_and_values_are_the_native_ones(name, low):
    torch.manual_seed(3)
    func, make, rest = LINEAR[name]
    tensors = [tensor.to(low) for tensor in make(7)]
    magnitude = results(func(*(tensor.float().abs() for tensor in tensors), *rest))
    for ours, native, large in zip(
        results(execute(func, (*tensors, *rest), {})), results(func(*tensors, *rest)), magnitude, strict=True
    ):
        assert (ours.dtype, ours.shape) == (native.dtype, native.shape)
        # Native kernels may round intermediate sums to the low dtype.
        assert ((ours.float() - native.float()).abs() <= 4 * torch.finfo(low).eps * large).all()


@pytest.mark.parametrize("low", LOW)
def test_attention_keeps_its_logarithms_in_float32_and_is_accurate(low):
    torch.manual_seed(0)
    query, key, value, grad = (torch.randn(2, 3, 8, 16).to(low) for _ in range(4))
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    out, logsumexp = execute(forward, (query, key, value), {"is_causal": True})
    assert (
        [item.dtype for item in forward(query, key, value)]
        == [out.dtype, logsumexp.dtype]
        == [low, torch.float32]
    )
    exact = [tensor.double().requires_grad_() for tensor in (query, key, value)]
    expected = functional.scaled_dot_product_attention(*exact, is_causal=True)
    expected.backward(grad.double())
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    grads = execute(backward, (grad, query, key, value, out, logsumexp, 0.0, True), {})
    torch.testing.assert_close(out.double(), expected.detach(), rtol=torch.finfo(low).eps, atol=1e-6)
    for got, tensor in zip(grads, exact, strict=True):
        assert got.dtype is low
        torch.testing.assert_close(
            got.double(), tensor.grad, rtol=8 * torch.finfo(low).eps, atol=torch.finfo(low).eps
        )


@pytest.mark.parametrize("func", [aten.mm.default, aten.convolution.default, aten.add.Tensor])
def test_float32_calls_are_left_alone(func):
    args = (torch.randn(4, 3, 5, 5), torch.randn(2, 3, 3, 3), None, *CONVOLUTION)
    args = args if func is aten.convolution.default else (torch.randn(5, 5), torch.randn(5, 5))
    assert torch.equal(execute(func, args, {}), func(*args))


def test_mixed_dtypes_are_refused_as_natively():
    args = (torch.ones(2, 2, dtype=torch.float16), torch.ones(2, 2))
    with pytest.raises(RuntimeError) as native:
        aten.mm.default(*args)
    with pytest.raises(RuntimeError) as ours:
        execute(aten.mm.default, args, {})
    assert str(ours.value) == str(native.value)


@pytest.mark.parametrize("low", LOW)
def test_writing_operators_write_and_return_the_given_tensor(low):
    first, second = torch.randn(3, 5).to(low), torch.randn(5, 3).to(low)
    product = execute(aten.mm.default, (first, second), {})
    out = torch.zeros(3, 3, dtype=low)
    version = out._version
    assert execute(aten.mm.out, (first, second), {"out": out}) is out
    assert torch.equal(out, product)
    assert out._version == version + 1
    assert execute(aten.addmm_.default, (out, first, second), {"beta": 2}) is out
    expected = execute(aten.addmm.default, (product, first, second), {"beta": 2})
    assert torch.equal(out, expected)
    empty = torch.empty(0, dtype=low)
    assert execute(aten.mm.out, (first, second), {"out": empty}) is empty
    assert torch.equal(empty, product)


@pytest.mark.parametrize("low", LOW)
def test_a_view_is_written_through(low):
    base = torch.zeros(4, 4, dtype=low)
    ones = torch.ones(2, 2, dtype=low)
    execute(aten.addmm_.default, (base[1:3, 1:3], ones, ones), {})
    assert torch.equal(base.float(), functional.pad(torch.full((2, 2), 2.0), (1, 1, 1, 1)))


@pytest.mark.parametrize("low", LOW)
def test_operators_without_a_low_kernel_run_in_float32_and_are_named(low):
    values = torch.randn(4, 3).to(low)
    func = aten._cdist_forward.default
    with pytest.raises(NotImplementedError):
        func(values, values, 2.0, None)
    for _ in range(2):  # learned, then known
        distances = execute(func, (values, values, 2.0, None), {})
        assert torch.equal(distances, func(values.float(), values.float(), 2.0, None).to(low))
    assert wide._rules[func].learned


def test_what_is_learned_for_one_dtype_says_nothing_of_the_other(monkeypatch):
    monkeypatch.setattr(wide, "_rules", {})
    args = (torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.float16), 0.1, 0.3, True)
    execute(aten.rrelu_with_noise.default, args, {})
    assert [rule.dtypes for rule in wide._rules.values()] == [frozenset({torch.float16, torch.complex32})]


def test_integer_results_of_widened_operators_stay_integers():
    values = torch.randn(3, 5).half()
    targets = torch.tensor([0, 1, 2])
    loss = execute(aten.multi_margin_loss.default, (values, targets), {})
    assert loss.dtype is torch.float16
    counts, edges = execute(aten.histogram.bin_ct, (values, 4), {})
    exact, _ = aten.histogram.bin_ct(values.float(), 4)
    assert torch.equal(counts.float(), exact)
    assert edges.dtype is torch.float16


def test_half_fourier_transforms_go_there_and_back():
    values = torch.randn(8, 16).half()
    spectrum = execute(aten._fft_r2c.default, (values, [1], 0, True), {})
    assert spectrum.dtype is torch.complex32
    back = execute(aten._fft_c2r.default, (spectrum, [1], 2, 16), {})
    assert back.dtype is torch.float16
    torch.testing.assert_close(back, values, atol=4e-3, rtol=2e-3)


def test_solvers_refuse_low_precision_as_on_a_gpu():
    with pytest.raises(RuntimeError, match=r"not implemented for 'Half'|Low precision dtypes"):
        execute(aten.linalg_lu_factor_ex.default, (torch.eye(3).half(),), {})


def test_other_errors_come_through():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        execute(aten.mm.default, (torch.ones(2, 3).half(), torch.ones(2, 3).half()), {})


@pytest.mark.parametrize("low", LOW)
def test_a_step_of_a_network_is_the_native_one_up_to_rounding(low):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(484, 5),
    )
    values, labels = torch.randn(4, 3, 12, 12), torch.tensor([0, 1, 2, 3])

    def step(mode):
        model.zero_grad()
        with cuda_casting(), mode:
            with torch.autocast("cpu", low):
                loss = functional.cross_entropy(model(values), labels)
            loss.backward()
        return [loss.item(), *(parameter.grad.clone() for parameter in model.parameters())]

    native, ours = step(torch.enable_grad()), step(WideCompute())
    assert ours[0] == pytest.approx(native[0], rel=8 * torch.finfo(low).eps)
    for got, want in zip(ours[1:], native[1:], strict=True):
        error = (got - want).norm() / want.norm().clamp_min(1e-3)
        assert error < 16 * torch.finfo(low).eps


def test_recurrent_layers_run_forward_and_backward():
    torch.manual_seed(0)
    module, values = nn.LSTM(6, 8, 2, bidirectional=True), torch.randn(5, 3, 6)
    module(values)[0].sum().backward()
    exact = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    with cuda_casting(), WideCompute():
        with torch.autocast("cpu", torch.float16):
            out, _ = module(values)
        out.float().sum().backward()
    assert out.dtype is torch.float16
    for parameter, want in zip(module.parameters(), exact, strict=True):
        assert (parameter.grad - want).norm() <= 5e-3 * want.norm()
