"""The zoo's cases are what they claim to be, and a false claim would be noticed."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from running import CASES, load, run
from truth import KINDS, check

PATHS = sorted(CASES.glob("*.py"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_case_is_what_it_claims(path):
    wrong, note = check(load(path))
    assert not wrong, note


def test_every_kind_has_cases():
    kinds = Counter(load(path).TRUTH["kind"] for path in PATHS)
    assert set(kinds) == KINDS
    assert kinds["clean"] >= 20
    assert kinds.total() - kinds["clean"] >= 40
    assert min(kinds.values()) >= 4


def test_cases_are_seeded():
    for path in PATHS[::7]:
        case = load(path)
        first = [tensor.clone() for tensor in case.model().state_dict().values()]
        torch.manual_seed(99)
        second = case.model().state_dict().values()
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), path.stem


def claiming(name, **changes):
    """Return a case whose TRUTH is changed."""
    case = load(CASES / f"{name}.py")
    return SimpleNamespace(**{**vars(case), "TRUTH": case.TRUTH | changes})


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("uint16_scan_input", {"layers": ["3"]}, "it starts in '0.conv'"),
        ("uint16_scan_input", {"op": "exp"}, "with _to_copy"),
        ("uint16_scan_input", {"layers": ["absent"]}, "no module 'absent'"),
        ("two_towers_second_order", {"fp32_fix": ["image.pool"]}, "does not heal"),
        ("two_queues_written_in_place", {"fp32_fix": ["far"]}, "does not heal"),
        ("statistics_pooling_e_x2", {"fp32_fix": ["pool", "out"]}, "('pool',) alone heals it"),
        ("loss_times_ten_thousand", {"scaler": "needs-scale<=2**7"}, "bound is wrong"),
        ("loss_times_ten_thousand", {"scaler": "none"}, "nothing becomes infinite"),
        ("distillation_without_t_squared", {"scaler": "needs-scale>=2**2"}, "bound is wrong"),
        ("distillation_without_t_squared", {"scaler": "needs-scale>=2**7"}, "bound is wrong"),
        ("inverse_depth_gradient", {"scaler": "needs-scale<=2**4"}, "bound is wrong"),
        ("scale_gate_two_stages", {"layers": ["2", "2.branch"]}, "these get no gradient, too"),
        ("statistics_pooling_e_x2", {"op": "exp"}, "with sub"),
        ("statistics_pooling_e_x2", {"kind": "forward-overflow"}, "nothing becomes infinite"),
        ("clean_gan_two_losses", {"kind": "precision-loss", "layers": [""]}, "no symptom"),
        ("statistics_pooling_e_x2", {"kind": "clean"}, "error"),
        ("sgd_small_rate_fp16_weights", {"probe": "nonfinite"}, "no symptom"),
        ("pad_with_minus_1e9", {"layers": ["embed"]}, "it starts in 'rank'"),
    ],
)
def test_a_false_claim_is_noticed(name, changes, complaint):
    wrong, _ = check(claiming(name, **changes))
    assert any(complaint in line for line in wrong), wrong


def test_low_precision_is_that_of_cuda():
    """The witness itself: the product of two half tensors is rounded to half, and 65520 is no half."""
    low = run(load(CASES / "attention_scaled_after_product.py"), torch.float16, 8)
    exact = run(load(CASES / "attention_scaled_after_product.py"))
    assert low.loss != low.loss  # NaN
    assert exact.loss == exact.loss
