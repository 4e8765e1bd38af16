"""`bf16-true` and `16-true` of Lightning and Fabric at a small rate: what is printed is in their own terms, and heals.

Each is trained by its own Trainer or Fabric, watched and without a callback; then again as the printed line says.
"""

import pytest
import torch
from code_lines import line_of
from torch import nn

import ampcheck
from ampcheck.diagnose.rules.installed import in_installed
from ampcheck.renderers.next_step import next_step
from ampcheck.values.findings import Severity

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")
QUIET = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def batches(count=8):
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 16, generator=draw), torch.arange(16) % 4) for _ in range(count)]


def by_trainer(**options):
    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]).float(), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-5)

    module = Lit()
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, **QUIET, **options)
    trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))
    return module.net


def by_fabric(**options):
    fabric = lightning.Fabric(accelerator="cpu", devices=1, **options)
    model = net()
    held, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 1e-5))
    for x, y in batches():
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(held(x).float(), y))
        optimizer.step()
    return model


def moved(model, dtype):
    """Return the share of the weights that training has moved."""
    before, after = (
        torch.cat([p.detach().to(dtype).ravel() for p in one.parameters()]) for one in (net(), model)
    )
    return float((before != after).float().mean())


def trained(train, **options):
    """Train; return the errors that are found, what is to be done, and the model."""
    with ampcheck.watch() as watching:
        model = train(**options)
    report = watching.report()
    return [one for one in report.findings if one.severity is Severity.ERROR], next_step(report), model


@pytest.mark.parametrize("short", ["bf16", "16"])
@pytest.mark.parametrize(
    ("train", "maker", "steps"),
    [(by_trainer, "Trainer", "trainer.fit("), (by_fabric, "Fabric", "optimizer.step()")],
    ids=["lightning", "fabric"],
)
def test_weights_that_stand_still_are_mended_in_the_frameworks_own_terms(train, maker, steps, short):
    dtype = {"bf16": torch.bfloat16, "16": torch.float16}[short]
    (error,), step, model = trained(train, precision=f"{short}-true")
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert moved(model, dtype) < 0.1  # nearly all of them stand still
    assert error.code == "AMP504"
    (line,) = error.fix
    assert line.startswith(f'{maker}(precision="{short}-mixed")  # instead of "{short}-true"')
    # The line that is named is the user's: the library's stands behind it.
    assert (error.origin.file.rpartition("/")[2], error.origin.line) == (
        "test_true_half.py",
        line_of(train, steps),
    )
    assert [in_installed(site.file) for site in error.sites] == [False, True]
    for text in (step, *error.fix):
        assert "lightning/" not in text
        assert ".float()" not in text
    change = eval(line, {maker: lambda **options: options})
    found, _, model = trained(train, **change)
    assert not found
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert moved(model, torch.float32) > 0.5
