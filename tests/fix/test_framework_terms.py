"""Printed advice, applied in the framework it is for: where torch's own start skips steps, the advised one skips none.

A CPU stands in for CUDA here: the printed line is run with "cpu" where it says "cuda".
"""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.fix.framework_terms import BF16, KEEPS, SCALES, in_terms, in_use
from ampcheck.values.plan import Plan, ScalerPlan

POWER, STEPS = 6, 3
PLAN = Plan("fp16", scaler=ScalerPlan(2.0**POWER))


def printed(framework, plan=PLAN):
    """The line for a framework, as it is run on a CPU."""
    (sentence,) = in_terms(plan, [framework])
    return sentence.removeprefix(f"in {framework}: ").partition("  #")[0].replace('"cuda"', '"cpu"')


class Big(nn.Linear):
    """Its gradient is near 100: 2^16 times that is more than fp16 holds, 2^6 times that is not."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(4, 1, bias=False)


def rows():
    return torch.full((8 * STEPS, 4), 100.0)


def updates(before, after):
    return not torch.equal(before, after)


def lightning_trains(**options):
    import lightning as pl

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.skipped = Big(), 0

        def training_step(self, batch, _):
            return self.model(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

        def optimizer_step(self, *args, **kwargs):
            before = self.model.weight.detach().clone()
            super().optimizer_step(*args, **kwargs)
            self.skipped += not updates(before, self.model.weight)

    lit = Lit()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1}
    pl.Trainer(**quiet, **options).fit(lit, torch.utils.data.DataLoader(rows(), 8))
    return lit.skipped


@pytest.mark.filterwarnings("ignore")
def test_lightning():
    import lightning
    import lightning.pytorch.plugins

    names = {"lightning": lightning, "torch": torch, "Trainer": lambda **options: options}
    from lightning.pytorch.plugins import MixedPrecision

    start = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    assert lightning_trains(plugins=[start]) == STEPS
    assert lightning_trains(**eval(printed("Lightning"), names)) == 0
    assert lightning_trains(**eval(BF16["Lightning"], names)) == 0


@pytest.mark.filterwarnings("ignore")
def test_fabric():
    import lightning
    import lightning.fabric.plugins

    names = {"lightning": lightning, "torch": torch, "Fabric": lambda **options: options}

    def trains(**options):
        fabric = lightning.Fabric(accelerator="cpu", devices=1, **options)
        model = Big()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        skipped = 0
        for batch in rows().split(8):
            before = model.weight.detach().clone()
            optimizer.zero_grad()
            fabric.backward(model(batch).mean())
            optimizer.step()
            skipped += not updates(before, model.weight)
        return skipped

    from lightning.fabric.plugins import MixedPrecision

    start = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    assert trains(plugins=[start]) == STEPS
    assert trains(**eval(printed("Fabric"), names)) == 0


@pytest.mark.filterwarnings("ignore")
def test_accelerate(monkeypatch):
    import accelerate
    from accelerate.state import AcceleratorState

    def options_of(**options):
        return options

    line = printed("Accelerate")
    options = eval(line, {"Accelerator": options_of, "accelerate": accelerate})
    kwargs = options["kwargs_handlers"][0].to_kwargs()

    def trains(**scaler):
        """Accelerate makes a scaler for a GPU alone; here it is made as Accelerate makes it."""
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.scaler = torch.amp.GradScaler("cpu", **scaler)
        model = Big()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        skipped = 0
        for batch in rows().split(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(batch).mean()
            accelerator.scaler.scale(loss).backward()
            optimizer.step()
            skipped += optimizer.step_was_skipped
        return skipped

    assert options["mixed_precision"] == "fp16"
    assert kwargs == {"init_scale": 2.0**POWER}
    assert trains() == STEPS
    assert trains(**kwargs) == 0


@pytest.mark.filterwarnings("ignore")
def test_transformers(tmp_path):
    import transformers

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Big()

        def forward(self, x):
            with torch.autocast("cpu", torch.float16):
                return {"loss": self.model(x).mean()}

    class Own(transformers.Trainer):
        skipped = 0

        def training_step(self, model, inputs, *_, **__):
            with torch.enable_grad():
                loss = model(**inputs)["loss"]
            self.accelerator.scaler.scale(loss).backward()
            return loss.detach()

    class Counter(transformers.TrainerCallback):
        skipped = 0

        def on_optimizer_step(self, args, state, control, *, optimizer, **_):
            self.skipped += optimizer.step_was_skipped

    def trains(line):
        counter = Counter()
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            use_cpu=True,
            optim="sgd",  # a fused one skips inside, which Accelerate does not count
            per_device_train_batch_size=8,
            num_train_epochs=1,
            report_to=[],
            max_grad_norm=0.0,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Own(Wrapped(), arguments, train_dataset=[{"x": row} for row in rows()], callbacks=[counter])
        exec(line, {"trainer": trainer, "torch": torch})
        trainer.train()
        return counter.skipped

    assert trains('trainer.accelerator.scaler = torch.amp.GradScaler("cpu")') == STEPS
    assert trains(printed("transformers")) == 0


@pytest.mark.slow
def test_keras(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    optimizer = eval(printed("Keras"), {"keras": keras, "optimizer": keras.optimizers.SGD(1e-3)})
    optimizer.build([keras.Variable([1.0])])
    assert float(optimizer.scale_loss(1.0)) == 2.0**POWER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import lightning as L\nfrom transformers import Trainer\n", ["Lightning", "transformers"]),
        ("from lightning.fabric import Fabric\n", ["Fabric"]),
        ("import torch\n", []),
        ("from torch.distributed.fsdp import fully_shard\nimport megatron.core\n", ["FSDP2", "Megatron"]),
        ("from determined import pytorch\n", ["Determined"]),
        ("import determined\ncontext.experimental.use_amp()\n", ["Determined with use_amp"]),
        ("def broken(:\n", []),
    ],
)
def test_a_file_names_its_frameworks(text, expected, tmp_path):
    file = Path(tmp_path, "train.py")
    file.write_text(text)
    assert in_use(file) == expected
    assert in_use(None) == []


def test_every_framework_has_a_line_and_no_plan_has_none():
    assert all(f"in {name}: " in in_terms(PLAN, [name])[0] for name in SCALES)
    assert in_terms(None, ["Lightning"]) == in_terms(Plan("fp32"), ["Lightning"]) == ()
    assert in_terms(Plan("bf16"), ["Accelerate"]) == ('in Accelerate: Accelerator(mixed_precision="bf16")',)
    assert "ampcheck" in sys.modules


def test_the_manual_has_the_lines_that_are_printed():
    page = Path(ampcheck.__file__).parent.joinpath("manual", "frameworks.md").read_text(encoding="utf-8")
    for name, line in SCALES.items():
        assert f"`{line(14)}`" in page, name
    for name, keeps in KEEPS.items():
        assert f"`{keeps('norm', 'float16')}`" in page, name
    assert BF16["TorchTitan"] in page


class RMSNorm(nn.Module):
    """Squares inputs near 1000: more than fp16 holds."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(64))

    def forward(self, x):
        return self.gain * x / (x * x).mean(-1, keepdim=True).sqrt()


@pytest.mark.filterwarnings("ignore")
def test_fsdp2_keeps_a_module_in_fp32():
    dist = torch.distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def trains(lines):
        """Return which parameters have a gradient, and the scale that the scaler starts at."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), RMSNorm(), nn.Linear(64, 4))
        names = {"torch": torch, "model": model, "MixedPrecisionPolicy": MixedPrecisionPolicy}
        names["fully_shard"] = lambda module, **options: fully_shard(module, mesh=mesh, **options)
        exec("\n".join(lines), names)
        loss = nn.functional.cross_entropy(
            model(900 * torch.randn(8, 16)).float(), torch.zeros(8, dtype=torch.long)
        )
        names["scaler"].scale(loss).backward()
        return [bool(p.grad.full_tensor().any()) for p in model.parameters()], names["scaler"].get_scale()

    plan = Plan("fp16", ("1",), scaler=ScalerPlan(2.0**POWER))
    start, keep = (s.removeprefix("in FSDP2: ").replace('"cuda"', '"cpu"') for s in in_terms(plan, ["FSDP2"]))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        assert trains([start]) == ([False, False, False, False, True], 2.0**POWER)
        assert trains([keep, start]) == ([True] * 5, 2.0**POWER)
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_transformers_keeps_the_weights_of_a_module_in_fp32(tmp_path, monkeypatch):
    from transformers import T5Config, T5EncoderModel
    from transformers.models.t5.modeling_t5 import T5PreTrainedModel

    monkeypatch.setattr(T5PreTrainedModel, "_keep_in_fp32_modules", None)  # as if nobody had known
    monkeypatch.setattr(T5EncoderModel, "_keep_in_fp32_modules_strict", None)
    torch.manual_seed(0)
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    model, ids = T5EncoderModel(config).eval(), torch.arange(8)[None]
    name = "encoder.block.0.layer.1.DenseReluDense.wo"
    with torch.no_grad():
        model.get_submodule(name).weight.mul_(1e4)
        model.get_submodule("encoder.block.0.layer.1.DenseReluDense.wi").weight.mul_(1e3)
        wanted = model(input_ids=ids).last_hidden_state
    model.save_pretrained(tmp_path)

    def error():
        low = T5EncoderModel.from_pretrained(tmp_path, dtype=torch.float16).eval()
        with torch.no_grad():
            found = low(input_ids=ids).last_hidden_state.float()
        return float((found - wanted).norm() / wanted.norm())

    assert not error() < 0.1  # it is wrong, or no number
    (line,) = in_terms(Plan("fp16", (name,), cast="weights"), ["transformers"])
    exec(line.removeprefix("in transformers: "), {"Model": T5EncoderModel})
    assert error() < 0.01


@pytest.mark.slow
def test_keras_keeps_a_layer_in_fp32(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    (line,) = in_terms(Plan("fp16", ("square",)), ["Keras"])
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")

    def finite(**options):
        layers = [keras.Input((16,)), keras.layers.Dense(64, kernel_initializer="ones")]
        layers += [keras.layers.Lambda(lambda x: x * x, name="square", **options)]
        model = keras.Sequential([*layers, keras.layers.Dense(4, dtype="float32")])
        return bool(torch.isfinite(model(900 * torch.ones(8, 16))).all())

    try:
        assert not finite()
        assert finite(**eval(f"dict({line.removeprefix('in Keras: ').partition('  #')[0]})"))
    finally:
        keras.mixed_precision.set_global_policy(before)
