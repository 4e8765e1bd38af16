import torch
from model import batch, loss, model


def test_trains_in_fp16(amp_audit):
    torch.manual_seed(0)
    amp_audit(model(), batch(), loss).assert_safe()


def test_the_norm_and_nothing_else_is_in_fp32(amp_audit):
    torch.manual_seed(0)
    report = amp_audit(model(), batch(), loss)
    report.assert_dtypes({"stem": torch.float16, "norm": torch.float32, "head": torch.float16})
    report.assert_fp32_set([])


def test_gradients_fit(amp_audit):
    torch.manual_seed(0)
    report = amp_audit(model(), batch(), loss)
    report.assert_no_overflow()
    report.assert_underflow_below(0.01)
    report.assert_scale_between(2**8, 2**16)
