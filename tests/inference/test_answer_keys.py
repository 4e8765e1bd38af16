"""Keep-in-FP32 lists of transformers are found again where realistic numbers are planted, and only there."""

import pytest
import torch
from answer_keys import ROUTERS, audited

#: Tried in every run; the others take half a minute together.
QUICK = ("glm4_moe", "solar_open", "afmoe")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def is_owner(row):
    """Tell whether the module that an audit names owns the parameter or buffer that the list names."""
    model = row.model
    held = dict([*model.named_parameters(), *model.named_buffers()])
    owners = {name.rpartition(".")[0] for name in held if name.endswith(row.listed)}
    return any(owner == row.named or owner.startswith(f"{row.named}.") for owner in owners)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ROUTERS]
)
def test_the_listed_module_is_named_where_its_bias_is_as_in_trained_models(name):
    row = audited(name, "bf16", "bias")
    assert row.named
    assert is_owner(row)
    outcomes = row.report.outcomes
    assert outcomes["planned"].error < outcomes["settled"].error / 2


@pytest.mark.parametrize("planted", ["wo", ""])
def test_t5_needs_its_list_not_here_since_it_clamps(planted):
    row = audited("t5", "fp16", planted)
    assert row.listed == "wo"
    assert not row.named
    sites = row.report.low.sites.items()
    inside = [stats.infs for site, stats in sites if site.module.endswith(".wo")]
    assert any(inside) == bool(planted)  # an infinity, and no harm


def test_with_random_numbers_a_router_needs_its_list_not_either():
    assert not audited("glm4_moe", "fp16", "").named
