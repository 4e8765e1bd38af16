"""Training in libraries on top of PyTorch: `python frameworks.py NAME`."""

import os
import sys
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from systems_common import batches, digest, loss_of, net, parameters, scaler, train  # noqa: E402
from torch import nn  # noqa: E402


def torchao_fp8():
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    model = net(64, 64, 16)
    convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = list(batches(rows=16, width=64, out=16))
    digest(train(model, optimizer, dtype=torch.bfloat16, data=data), parameters(model))


def torchao_int8():
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training
    from torchao.quantization import quantize_

    model = net(64, 64, 16)
    quantize_(model, int8_weight_only_quantized_training())
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    data = list(batches(rows=16, width=64, out=16))
    losses = train(model, optimizer, dtype=torch.bfloat16, data=data)
    digest(losses, [getattr(p, "int_data", p) for p in model.parameters()])


def bitsandbytes():
    import bitsandbytes

    model = net(64, 64, 16)
    model[2] = bitsandbytes.nn.Linear4bit(64, 64, compute_dtype=torch.bfloat16)
    model.to("cpu")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    data = list(batches(rows=16, width=64, out=16))
    digest(train(model, torch.optim.AdamW(trained, 1e-3), dtype=torch.bfloat16, data=data), trained)


def peft():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(net(), LoraConfig(target_modules=["0", "2"], r=4, lora_dropout=0.1))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    digest(train(model, torch.optim.AdamW(trained, 1e-3), scaler()), parameters(model))


def lightning():
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = net(), []

        def training_step(self, batch, _):
            loss = loss_of(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    module = Module()
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", precision="bf16-mixed", gradient_clip_val=1.0, **quiet
    )
    trainer.fit(module, torch.utils.data.DataLoader(list(batches()), batch_size=None))
    digest(module.losses, parameters(module))


def fabric():
    from lightning.fabric import Fabric

    work = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    work.launch()
    model = net()
    held, optimizer = work.setup(model, torch.optim.AdamW(model.parameters(), 1e-3))
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(held(x), y)
        work.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    digest(losses, parameters(model))


def hf_trainer():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    set_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=50, num_hidden_layers=2, num_attention_heads=2, **sizes)
    )
    rows = [{"input_ids": torch.full((8,), i % 50), "labels": torch.tensor(i % 2)} for i in range(24)]
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 100}
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=4, max_steps=6, bf16=True, use_cpu=True, **quiet
    )
    ended = Trainer(model, arguments, train_dataset=rows).train()
    digest([ended.training_loss], parameters(model))


def accelerate():
    from accelerate import Accelerator

    work = Accelerator(mixed_precision="bf16", cpu=True)
    model = net()
    held, optimizer = work.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(held(x), y)
        work.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    digest(losses, parameters(model))


def ignite():
    from ignite.engine import create_supervised_trainer

    model, losses = net(), []
    optimizer, scale = torch.optim.AdamW(model.parameters(), 1e-3), scaler()

    def update(_engine, batch):
        losses.extend(train(model, optimizer, scale, data=[batch]))

    from ignite.engine import Engine

    Engine(update).run(list(batches()), max_epochs=1)
    create_supervised_trainer(model, optimizer, loss_of).run(list(batches(2)), max_epochs=1)
    digest(losses, parameters(model))


def mmengine():
    from mmengine.optim import AmpOptimWrapper

    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    wrapper = AmpOptimWrapper(loss_scale="dynamic", dtype="float16", optimizer=optimizer)
    losses = []
    for x, y in batches():
        with wrapper.optim_context(model):
            loss = loss_of(model(x), y)
        wrapper.update_params(loss)
        losses.append(loss.item())
    digest(losses, parameters(model))


def keras():
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = torch.cat([x for x, _ in batches()]).numpy()
    y = torch.cat([y for _, y in batches()]).numpy()
    history = model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    digest(history.history["loss"], [variable.value for variable in model.trainable_variables])


def determined():
    from determined import core, pytorch

    del core

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context, self.losses = context, []
            self.model = context.wrap_model(net())
            self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), 1e-3))

        def train_batch(self, batch, epoch_idx, batch_idx):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(self.model(batch[0]), batch[1])
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            self.losses.append(loss.item())
            return {"loss": loss}

        def evaluate_batch(self, batch):
            return {"loss": loss_of(self.model(batch[0]), batch[1])}

        def build_training_data_loader(self):
            return pytorch.DataLoader(_rows(), batch_size=8)

        def build_validation_data_loader(self):
            return pytorch.DataLoader(_rows(), batch_size=8)

    with pytorch.init() as context:
        trial = Trial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(6))
    digest(trial.losses, parameters(trial.model))


def _rows():
    return torch.utils.data.TensorDataset(
        torch.cat([x for x, _ in batches()]), torch.cat([y for _, y in batches()])
    )


def speechbrain():
    import speechbrain as sb

    class Brain(sb.Brain):
        losses: list

        def compute_forward(self, batch, stage):
            return self.modules.net(batch[0])

        def compute_objectives(self, out, batch, stage):
            loss = loss_of(out, batch[1])
            self.losses.append(loss.item())
            return loss

    options = {"device": "cpu", "precision": "bf16"}
    brain = Brain({"net": net()}, lambda held: torch.optim.AdamW(held, 1e-3), run_opts=options)
    brain.losses = []
    brain.fit(range(1), torch.utils.data.DataLoader(list(batches()), batch_size=None), progressbar=False)
    digest(brain.losses, parameters(brain.modules))


def ultralytics():
    from ultralytics.nn.tasks import DetectionModel

    net()  # seeds every generator
    model = DetectionModel("yolov8n.yaml", nc=2, verbose=False)
    from types import SimpleNamespace

    model.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    losses = []
    for _ in range(3):
        batch = {
            "img": torch.rand(2, 3, 64, 64),
            "cls": torch.zeros(2, 1),
            "bboxes": torch.full((2, 4), 0.5),
            "batch_idx": torch.arange(2.0),
        }
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch)[0].sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest(losses, parameters(model))


if __name__ == "__main__":
    del nn
    globals()[sys.argv[1]]()
