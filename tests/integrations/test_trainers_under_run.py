"""Trainers of Lightning and of transformers under `ampcheck run`, with our callback in them, and with an overflow."""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from scripts_run import DIGEST, Ran, watched

from ampcheck.run.watch_loop import YIELDED
from ampcheck.saved.report_json import read
from ampcheck.values.findings import Severity
from ampcheck.values.verdict import Health

#: Batches, and how many of them make a step.
BATCHES, ACCUMULATED = 12, 2
LIGHTNING = f"""
import logging, sys, torch, warnings
import lightning as pl
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, _):
        out = self.net(batch[0])
        if sys.argv[1] == "over":
            out = (out * 3000).square().sqrt()
        return nn.functional.cross_entropy(out, batch[1])

    def on_train_batch_end(self, outputs, batch, index):
        if index % {ACCUMULATED}:
            print("scale", self.trainer.precision_plugin.scaler.get_scale())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


callbacks = []
if sys.argv[1] == "callback":
    from ampcheck.integrations.lightning import AmpcheckCallback
    callbacks = [AmpcheckCallback("callback.json")]
torch.manual_seed(0)
lit, data = Lit(), torch.utils.data.TensorDataset(torch.randn({BATCHES * 8}, 16), torch.arange({BATCHES * 8}) % 4)
quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
trainer = pl.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, precision="16-mixed", gradient_clip_val=1.0,
    accumulate_grad_batches={ACCUMULATED}, callbacks=callbacks, **quiet,
)
trainer.fit(lit, torch.utils.data.DataLoader(data, 8))
trained = list(lit.parameters())
{DIGEST}"""
TRANSFORMERS = f"""
import sys, torch, warnings
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers import PrinterCallback, set_seed

warnings.filterwarnings("ignore")
set_seed(0)
sizes = dict(vocab_size=50, hidden_size=16, intermediate_size=32, max_position_embeddings=16)
model = BertForSequenceClassification(BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes))
if sys.argv[1] == "over":
    model.bert.encoder.layer[1].output.dense.weight.data *= 1e7
rows = [dict(input_ids=torch.full((8,), i % 50), labels=torch.tensor(i % 2)) for i in range(24)]


class Tells(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        print("scale", trainer.accelerator.scaler.get_scale())


callbacks = [Tells()]
if sys.argv[1] == "callback":
    from ampcheck.integrations.transformers import AmpcheckCallback
    callbacks.append(AmpcheckCallback("callback.json"))
quiet = dict(report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no")
arguments = TrainingArguments("out", per_device_train_batch_size=4, max_steps=6, fp16=True, **quiet)
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
trainer.remove_callback(PrinterCallback)  # it prints times
trainer.train()
trained = list(model.parameters())
{DIGEST}"""
TEXTS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}
NEEDS = {"lightning": ["lightning"], "transformers": ["transformers", "accelerate"]}
STEPS = BATCHES // ACCUMULATED


#: What an overflow is to be found at: a line of the script, or a layer.
OVERFLOWS_AT = {"lightning": ".square().sqrt()", "transformers": "model.bert.encoder.layer.1.output.dense"}


@dataclass
class Trainer:
    """A framework's script, and what runs it in one of three ways, each once."""

    name: str
    script: Path
    run: Callable[[str], Ran]


@pytest.fixture(scope="module", params=TEXTS)
def trainer(request, tmp_path_factory):
    for package in NEEDS[request.param]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = tmp_path_factory.mktemp(request.param) / "train.py"
    script.write_text(TEXTS[request.param])
    run = functools.cache(lambda how: watched(script, how, options=["--as-cuda"]))
    return Trainer(request.param, script, run)


def errors(report):
    return [one for one in report.findings if one.severity is Severity.ERROR]


def test_a_callback_inside_a_run_yields_and_says_so(trainer):
    without, inside = trainer.run("healthy"), trainer.run("callback")
    assert inside.printed == without.printed
    assert without.numbers("scale") == [2.0**16] * STEPS
    assert YIELDED in inside.errors
    assert YIELDED not in without.errors
    own = read(trainer.script.parent / "callback.json")
    assert YIELDED in own.notes
    assert (own.verdict.word, own.loop.steps, own.findings) == (Health.UNKNOWN, 0, ())
    for report in (without.report, inside.report):
        assert (report.precision, report.loop.steps, report.loop.skipped) == ("fp16", STEPS, 0)
        assert report.loop.recorded
        assert not {one.code for one in report.findings} & {"AMP501", "AMP203"}
        assert not errors(report)


def test_an_overflow_in_a_trainer_is_placed_and_its_skips_are_the_trainers_own(trainer):
    over = trainer.run("over")
    report, told = over.report, over.numbers("scale")
    assert len(told) == report.loop.steps == STEPS
    before = [2.0**16, *told[:-1]]
    falls = [
        (step, *pair, True) for step, pair in enumerate(zip(before, told, strict=True)) if len(set(pair)) > 1
    ]
    assert falls
    assert [(one.step, one.before, one.after, one.skipped) for one in report.loop.scales] == falls
    assert report.loop.skipped == len(falls)
    first, *_ = errors(report)
    at = OVERFLOWS_AT[trainer.name]
    if trainer.name == "lightning":
        lines = [n for n, text in enumerate(LIGHTNING.splitlines(), 1) if at in text]
        assert [("train.py", line) for line in lines] == [(first.origin.file, first.origin.line)]
    else:
        assert (first.code, first.origin.module) == ("AMP101", at)
