"""Fourier transforms of halves: numpy's numbers, rounded, and cuFFT's refusal."""

import numpy as np
import pytest
import torch
from torch import nn

from ampcheck import check
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health

CASES = {
    "fft": ((4, 16), {}),
    "ifft": ((4, 16), {"dim": 0}),
    "rfft": ((4, 16), {"dim": 1}),
    "irfft": ((4, 9), {"n": 16}),
    "hfft": ((4, 9), {}),
    "ihfft": ((4, 16), {}),
    "fft2": ((3, 8, 16), {}),
    "rfft2": ((3, 8, 16), {}),
    "irfft2": ((3, 8, 9), {}),
    "fftn": ((2, 8, 4), {}),
    "rfftn": ((3, 8, 4), {"dim": (1, 2)}),
    "irfftn": ((3, 8, 5), {"dim": (1, 2)}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_halves_are_transformed_as_numpy_does(name):
    shape, options = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape).half()
    with cuda_casting(), torch.autocast("cpu", torch.float16):
        found = getattr(torch.fft, name)(x, **options)
    theirs = (
        {"axis" if name in ("fft", "ifft", "rfft") else "axes": options["dim"]} if "dim" in options else {}
    )
    truth = getattr(np.fft, name)(x.double().numpy(), **({"n": options["n"]} if "n" in options else theirs))
    assert found.dtype is (torch.complex32 if np.iscomplexobj(truth) else torch.float16)
    whole = torch.view_as_real(found) if found.is_complex() else found
    wanted = (
        torch.view_as_real(torch.from_numpy(truth)) if np.iscomplexobj(truth) else torch.from_numpy(truth)
    )
    torch.testing.assert_close(whole.double(), wanted.double(), rtol=2.0**-10, atol=2.0**-12)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("fft", (4, 12), {}),
        ("rfft", (4, 16), {"n": 10}),
        ("irfft", (4, 7), {}),
        ("fft2", (6, 8), {}),
        ("fftn", (3, 4), {"s": (6,)}),
    ],
)
def test_other_lengths_are_refused_in_halves_alone(name, shape, options):
    transform = getattr(torch.fft, name)
    with cuda_casting(), torch.autocast("cpu", torch.float16):
        assert transform(torch.randn(shape), **options).dtype in {torch.complex64, torch.float32}
        with pytest.raises(
            RuntimeError, match="cuFFT only supports dimensions whose sizes are powers of two"
        ):
            transform(torch.randn(shape).half(), **options)
        with pytest.raises(RuntimeError, match="BFloat16"):  # CUDA has none either
            transform(torch.randn(shape).bfloat16(), **options)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_gradients_flow_through_a_transform_of_halves():
    torch.manual_seed(0)
    x = torch.randn(4, 16, requires_grad=True)
    grads = []
    for low in (False, True):
        with cuda_casting(), WideCompute(), torch.autocast("cpu", torch.float16, enabled=low):
            value = (x.half() if low else x) * 1
            torch.fft.rfft(value).real.float().square().sum().backward()
        grads.append(x.grad.clone())
        x.grad = None
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-2, atol=1e-2)


class Mix(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).real


def audited(width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, width), Mix(), nn.Linear(width, 4))
    batch = torch.randn(8, 16), torch.randint(0, 4, (8,))
    return check(model, batch, lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_model_that_transforms_halves_of_a_length_that_cuda_takes_is_audited_in_them():
    report = audited(16)
    assert not report.findings
    assert report.verdict.word is Health.SAFE
    forward = [s for s in report.low.sites if (s.module, s.phase) == ("1", Phase.FORWARD)]
    assert {s.slot: s.dtype for s in forward if not s.op} == {"input[0]": "float16", "output": "float16"}
    assert "complex32" in {s.dtype for s in forward}
    assert report.outcomes["settled"].grad_error < 0.01


@pytest.mark.parametrize("width", [12, 20])
def test_a_model_that_transforms_halves_of_another_length_is_refused_as_cuda_refuses_it(width):
    report = audited(width)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert [(found.code, found.origin.module, found.origin.op) for found in errors] == [
        ("AMP301", "1", "fft_fft")
    ]
    assert "cuFFT only supports dimensions whose sizes are powers of two" in errors[0].message
    assert report.verdict.word is Health.UNSAFE
    assert report.plan.fp32_modules == ("1",)
    assert not report.outcomes["planned"].harmed
