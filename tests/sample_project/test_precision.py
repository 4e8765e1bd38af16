import pytest
import torch
from model import batch, loss, model


@pytest.fixture
def audit(amp_audit):
    torch.manual_seed(0)
    return amp_audit(model(), batch(), loss)


def test_trains_in_fp16(audit):
    audit.assert_safe()


def test_the_norm_and_nothing_else_is_in_fp32(audit):
    audit.assert_dtypes({"stem": torch.float16, "norm": torch.float32, "head": torch.float16})
    audit.assert_fp32_set([])


def test_gradients_fit(audit):
    audit.assert_no_overflow()
    audit.assert_underflow_below(0.01)
    audit.assert_scale_between(2**8, 2**16)
