"""Lightning's manual optimization: what its library does wrong is found at the user's line, and its hook mends it."""

import runpy
import textwrap
import warnings

import pytest

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule

TEXT = """
import torch
import lightning as pl
from lightning.pytorch.plugins import MixedPrecision


class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.model = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.model(batch).square().mean()
{backward}
{clip}
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

{hook}

def train():
    half = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, plugins=[half], **quiet)
    trainer.fit(Lit(), torch.utils.data.DataLoader(torch.ones(24, 4), 8))
"""


def findings(path, backward, clip, hook):
    """Train, and return what is found, by rule."""
    parts = {"backward": (backward, 8), "clip": (clip, 8), "hook": (hook, 4)}
    path.write_text(TEXT.format(**{k: textwrap.indent(text, " " * n) for k, (text, n) in parts.items()}))
    train = runpy.run_path(str(path))["train"]
    session = Session(Schedule(first=1, every=0))
    with warnings.catch_warnings(), session.watching():
        warnings.simplefilter("ignore")
        train()
    report = session.report("manual")
    assert report.loop.steps == 3
    return {finding.code: finding for finding in report.findings if finding.code.startswith("AMP4")}


@pytest.mark.filterwarnings("ignore")
def test_what_lightning_does_is_found_at_the_users_line_and_mended_by_what_is_printed(tmp_path):
    path = tmp_path / "manual.py"
    clip = "self.clip_gradients(optimizer, gradient_clip_val=1.0)"
    found = findings(path, "self.manual_backward(loss)", clip, "")
    lines = path.read_text().splitlines()
    assert set(found) == {"AMP401", "AMP407"}
    for code, line in (("AMP401", clip), ("AMP407", "self.manual_backward(loss)")):
        user, library = found[code].sites
        assert lines[user.line - 1].strip() == line
        assert library.file.startswith("lightning/pytorch/")
        assert library.location in found[code].message
    hook, backward = ("\n".join(found[code].fix) for code in ("AMP401", "AMP407"))
    assert not findings(path, backward.replace('"cuda"', '"cpu"'), "", hook)
