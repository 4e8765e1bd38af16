"""A generator whose gradients all round to zero, beside a critic that learns: the verdict, and where it points."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

NOISE, SIZE, ROWS = 8, 24, 32


def networks():
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.Linear(NOISE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, SIZE), nn.Tanh()
    )
    critic = nn.Sequential(nn.Linear(SIZE, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return generator, critic


def adversarial(weight, steps=6):
    """Train as scripts for CUDA do, the generator's loss times a weight; return it and the critic after that."""
    from torch.cuda.amp import GradScaler, autocast

    generator, critic = (network.to("cuda") for network in networks())
    of_g = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    of_d = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    scaler, bce = GradScaler(init_scale=2.0**14), nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(ROWS, 1, device="cuda"), torch.zeros(ROWS, 1, device="cuda")
    for _ in range(steps):
        with autocast():
            fake = generator(torch.randn(ROWS, NOISE, device="cuda"))
            real = critic(torch.randn(ROWS, SIZE, device="cuda"))
            loss = bce(real, ones) + bce(critic(fake.detach()), zeros)
        of_d.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(of_d)
        with autocast():
            loss = bce(critic(fake), ones) * weight
        of_g.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(of_g)
        scaler.update()
    return generator, critic


@pytest.mark.filterwarnings("ignore:.torch.cuda.amp:FutureWarning")
@pytest.mark.parametrize(("weight", "learns"), [(1e-11, False), (1.0, True)])
def test_a_generator_on_cuda_that_learns_nothing_is_named_by_an_error(weight, learns):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        generator, critic = adversarial(weight)
    assert any(bool(one.grad.any()) for one in generator.parameters()) is learns
    assert all(one.grad.any() for one in critic.parameters())
    report = session.report("script.py")
    errors = {one.code: one for one in report.findings if one.severity is Severity.ERROR}
    assert (report.verdict.word is Health.UNSAFE) is not learns
    assert ("AMP201" in errors) is not learns
    assert learns or errors["AMP201"].origin.module.startswith("generator")
