"""Small trainings in real frameworks: `python framework_scripts.py NAME FOLDER` trains watched, and then alone.

What came of both goes to FOLDER/NAME.json; the report to FOLDER/NAME.report.json.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))


def rows(count=48):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.randint(0, 4, (count,), generator=generator))


def lightning(path):
    import lightning as pl
    from lightning.pytorch.loggers import CSVLogger

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    callbacks = []
    if path:
        from ampcheck.integrations.lightning import AmpcheckCallback

        callbacks = [AmpcheckCallback(path, every=3, first=1)]
    module = Module()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=CSVLogger(path.parent) if path else False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(rows(), 8))
    return module.net


def transformers(path):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    set_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
    )
    data = [{"input_ids": torch.full((8,), i), "labels": torch.tensor(i % 2)} for i in range(24)]
    arguments = TrainingArguments(
        str(Path(sys.argv[2]) / "trainer"),
        per_device_train_batch_size=4,
        max_steps=6,
        bf16=True,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    callbacks = []
    if path:
        from ampcheck.integrations.transformers import AmpcheckCallback

        callbacks = [AmpcheckCallback(path, every=3, first=1)]
    Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()
    return model


def accelerate(path):
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(rows(), 8))
    watching = None
    if path:
        from ampcheck.integrations.accelerate import watch

        watching = watch(accelerator, every=2, first=1)
        watching.__enter__()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if watching:
        watching.__exit__(None, None, None)
        watching.save(path)
    return accelerator.unwrap_model(model, keep_torch_compile=False)


def keras(path, scale=2.0**10):
    import keras as k

    k.mixed_precision.set_global_policy("mixed_float16")
    k.utils.set_random_seed(0)
    layers = [
        k.layers.Input((8,)),
        k.layers.Dense(16, activation="relu", name="first"),
        k.layers.BatchNormalization(name="norm"),
        k.layers.Dense(4, dtype="float32", name="head"),
    ]
    model = k.Sequential(layers, name="small")
    adam = k.optimizers.LossScaleOptimizer(k.optimizers.Adam(), initial_scale=scale)
    model.compile(adam, k.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = []
    if path:
        from ampcheck.integrations.keras import AmpcheckCallback

        callbacks = [AmpcheckCallback(path, every=3, first=1)]
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(48, 8)).astype("float32"), draw.integers(0, 4, 48)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
    return [torch.from_numpy(value.copy()) for value in model.get_weights()]


def keras_overflow(path):
    return keras(path, 2.0**30)


def main(name, folder):
    warnings.simplefilter("ignore")
    report = Path(folder) / f"{name}.report.json"
    results = []
    for path in (report, None):
        model = globals()[name](path)
        values = model if isinstance(model, list) else list(model.parameters())
        results.append(([value.detach() for value in values], torch.get_rng_state()))
    same = all(map(torch.equal, results[0][0], results[1][0])) and torch.equal(results[0][1], results[1][1])
    (Path(folder) / f"{name}.json").write_text(json.dumps({"same": same}))


if __name__ == "__main__":
    main(*sys.argv[1:])
