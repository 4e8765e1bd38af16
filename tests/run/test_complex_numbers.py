"""Spectra between the weights and the loss: FP32 has them too, at no scale; what is compared is what torch finds."""

import copy

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.values.verdict import Health

SCALE = 2.0**10


class Wave(nn.Module):
    """A wave made by convolutions; its loss is that of its spectrum, as a vocoder has it."""

    def __init__(self):
        super().__init__()
        self.made = nn.Sequential(nn.Conv1d(1, 8, 9, padding=4), nn.Tanh(), nn.Conv1d(8, 1, 9, padding=4))

    def loss(self, x):
        return (self.spectrum(self.made(x)) - self.spectrum(2 * x)).square().mean()

    def spectrum(self, x):
        with torch.autocast("cpu", enabled=False):
            window = torch.hann_window(32)
            found = torch.stft(x.float().squeeze(1), 32, 8, window=window, return_complex=True)
            return (found.real.square() + found.imag.square() + 1e-2).sqrt()


class Modes(Wave):
    """The same, with weights for the modes of the spectrum of its input, as a Fourier operator has them."""

    def __init__(self):
        super().__init__()
        self.modes = nn.Parameter(torch.randn(33, dtype=torch.complex64))

    def loss(self, x):
        with torch.autocast("cpu", enabled=False):
            x = torch.fft.irfft(torch.fft.rfft(x) * self.modes)
        return super().loss(x)


def error(model, x, dtype):
    """Return by how much the gradients of low precision are off, by plain torch."""
    found = []
    for low in (True, False):
        copied = copy.deepcopy(model)
        with torch.autocast("cpu", dtype, enabled=low):
            loss = copied.loss(x)
        loss.backward()
        found.append(
            torch.cat(
                [
                    torch.view_as_real(p.grad).flatten() if p.is_complex() else p.grad.flatten()
                    for p in copied.parameters()
                ]
            )
        )
    return float((found[0] - found[1]).norm() / found[1].norm())


@pytest.mark.parametrize(("kind", "scaled"), [(Wave, True), (Wave, False), (Modes, False)])
def test_gradients_through_a_spectrum_are_compared_at_the_scale_they_have(kind, scaled):
    """GradScaler of torch does not take complex gradients, so weights of modes are trained without one."""
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 1, 64)
    dtype = torch.float16 if scaled else torch.bfloat16
    witness = error(model, x, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled)
    with ampcheck.watch(model, optimizer) as watching:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = model.loss(x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    report = watching.report()
    assert report.verdict.word is Health.SAFE, report.verdict.sentence
    assert not report.verdict.coverage.unseen
    assert report.outcomes["settled"].grad_error == pytest.approx(witness, rel=0.2)
    assert 0 < witness < 0.05
