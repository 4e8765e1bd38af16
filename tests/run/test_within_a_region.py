"""An audit that a script asks for within its region of autocast: the region is none of the audit's, nor changed."""

import pytest
import torch
from torch import nn

from ampcheck import check
from ampcheck.errors import StepError
from ampcheck.values.settings import Settings
from ampcheck.values.verdict import Health


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.b(self.a(x).square().mean(1, keepdim=True).sqrt().expand(-1, 8))


def loss(model, x):
    return (model(x).float() - 1).square().mean()


def made():
    torch.manual_seed(0)
    return Squares(), 1e4 * torch.randn(16, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp32_is_fp32_within_a_region(dtype):
    with torch.autocast("cpu", dtype), torch.autocast("cuda", torch.float16, enabled=False):
        within = check(*made(), loss)
    alone = check(*made(), loss)
    assert {site.dtype for site in within.reference.sites} == {"float32"}
    assert within.verdict == alone.verdict
    assert within.outcomes == alone.outcomes
    assert within.verdict.word is Health.UNSAFE


def test_a_model_is_audited_where_inference_mode_is_in_force():
    model, x = made()
    with torch.inference_mode():
        within = check(model, x, loss)
        assert torch.is_inference_mode_enabled()
    alone = check(*made(), loss)
    assert within.outcomes == alone.outcomes
    assert within.verdict == alone.verdict


def test_weights_made_in_inference_mode_are_not_called_frozen():
    with torch.inference_mode():
        model = nn.Linear(8, 1)
    with pytest.raises(StepError, match=r"made under torch\.inference_mode; make the model outside of it"):
        check(model, torch.randn(16, 8), lambda model, x: model(x).sum())


def gradients(model, x, between):
    """Return the gradients of a step that uses its weights before and after something."""
    with torch.autocast("cpu", torch.float16), torch.autocast("cpu", torch.float16):
        first = model(x)
        between()
        assert torch.is_autocast_enabled("cpu")
        value = (first.float() - 1).square().mean() + (model(-x).float() + 1).square().mean()
    assert not torch.is_autocast_enabled("cpu")
    return torch.autograd.grad(value, [*model.parameters()])


def test_a_region_goes_on_behind_an_audit_as_without_it():
    """Autocast keeps its casts of weights within a region: those of an audit, which has trained, are none of them."""
    model, x = made()
    x /= 1e4
    alone, anew = gradients(model, x, lambda: None), gradients(model, x, torch.clear_autocast_cache)
    after = gradients(model, x, lambda: check(model, x, loss, settings=Settings(verify_steps=3)))
    assert not all(map(torch.equal, alone, anew))  # where weights are cast again, rounding is another
    assert all(map(torch.equal, alone, after))
