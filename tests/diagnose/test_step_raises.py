"""A step that autocast refuses: the code that is printed instead is compiled, and does what the refused one did."""

import torch
from torch import nn

from ampcheck import check
from ampcheck.values.findings import Severity

#: What torch says on CUDA, up to its advice.
REFUSAL = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."


def net(*, sigmoid):
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1), *[nn.Sigmoid()] * sigmoid]
    return nn.Sequential(*layers)


def test_the_code_instead_of_a_refused_loss_does_the_same_and_is_accepted():
    batch = torch.randn(32, 16), torch.rand(32, 1).round()
    refused = check(
        net(sigmoid=True), batch, lambda model, b: nn.functional.binary_cross_entropy(model(b[0]), b[1])
    )
    (finding,) = [one for one in refused.findings if one.severity is Severity.ERROR]
    assert finding.code == "AMP301"
    assert finding.message.endswith(REFUSAL)
    assert "binary_cross_entropy_with_logits" in "\n".join(finding.fix)  # what torch says next
    assert "" not in refused.plan.fp32_modules
    written = compile("\n".join(finding.fix), "fix", "eval")

    def loss(model, b):
        return eval(written, {"torch": torch, "logits": model(b[0]), "target": b[1]})

    with torch.no_grad():
        before = nn.functional.binary_cross_entropy(net(sigmoid=True)(batch[0]), batch[1])
        torch.testing.assert_close(loss(net(sigmoid=False), batch), before)
    accepted = check(net(sigmoid=False), batch, loss)
    assert not [one for one in accepted.findings if one.severity is Severity.ERROR]
