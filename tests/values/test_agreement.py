"""What is measured of an output, in the terms of its meaning."""

from math import inf

import pytest
import torch

from ampcheck.values.agreement import IMAGE, LOGITS, NUMBERS, TOKENS, Agreement


def test_signal_over_noise_is_that_of_the_definition():
    torch.manual_seed(0)
    signal, noise = torch.randn(1000), 0.01 * torch.randn(1000)
    error = float(noise.norm() / signal.norm())
    decibels = float(10 * torch.log10(signal.square().sum() / noise.square().sum()))
    assert Agreement("output", NUMBERS, error).snr == pytest.approx(decibels, abs=1e-3)
    assert Agreement("output", NUMBERS, 0.0).snr == inf
    assert Agreement("output", NUMBERS, inf).snr == -inf


def test_each_meaning_has_its_own_measures():
    numbers = Agreement("output", NUMBERS, 0.01, cosine=0.99995).measures
    assert numbers == {"error": "1.0 %", "cosine": "0.99995", "SNR": "40.0 dB"}
    assert Agreement("output", NUMBERS, 0.1, 0.01, batches=3).measures["typical error"] == "1.0 %"
    assert Agreement("output", IMAGE, 0.1, psnr=31.25).measures["PSNR"] == "31.2 dB"
    logits = Agreement("output", LOGITS, 0.1, top1=0.5, top5=1.0, kl=0.0123).measures
    assert [logits[name] for name in ("top-1", "top-5", "KL")] == ["50 %", "100 %", "0.012"]
    tokens = Agreement("output", TOKENS, 0.25, diverged=7).measures
    assert tokens == {"tokens that differ": "25 %", "first difference": "7"}
