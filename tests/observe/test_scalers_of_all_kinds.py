"""The history of a loss scale is that of the script's scaler, whatever class it is of."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ampcheck


@pytest.fixture
def one_rank():
    """Let this process be a group of its own, which ShardedGradScaler asks for."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(scaler, steps=12, boom=5):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scales = [scaler.get_scale()]
    with ampcheck.watch(model) as seen:
        for step in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = model(torch.randn(4, 8) * (1e6 if step == boom else 1.0))
            scaler.scale(out.float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    return seen.report(), scales


class Capped(torch.amp.GradScaler):
    """A scale that never exceeds a limit: what super().update() leaves is not the last word."""

    def update(self, new_scale=None):
        super().update(new_scale)
        self._scale.clamp_(max=2.0**9)


class OwnStep(torch.amp.GradScaler):
    """A step of its own: unscales, looks, and steps or does not, without super().step()."""

    def step(self, optimizer):
        self.unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        return None if any(float(value) for value in found) else optimizer.step()


def assert_it_is_that_of(scaler):
    """Assert that a watch tells the scale before and after every step, and the skip, as the scaler does."""
    report, scales = trained(scaler)
    known = [next(iter(report.loop.first_scales.values()))] * len(scales)
    for event in report.loop.scales:
        known[event.step + 1 :] = [event.after] * (len(scales) - event.step - 1)
    assert known == scales
    assert [event.step for event in report.loop.scales if event.skipped] == [5]
    assert not {"AMP403", "AMP405", "AMP408"} & {finding.code for finding in report.findings}


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Capped, OwnStep])
def test_the_history_is_that_of_the_scaler_whatever_it_overrides(kind):
    assert_it_is_that_of(kind("cpu", init_scale=2.0**8, growth_interval=3))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_the_history_is_that_of_a_sharded_scaler(one_rank):
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    assert_it_is_that_of(ShardedGradScaler("cpu", init_scale=2.0**8, growth_interval=3))
