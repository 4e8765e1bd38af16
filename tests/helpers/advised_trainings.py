"""Small trainings in frameworks, with the lines that ampcheck prints for them: advised_trainings.py NAME [LINE].

Each trains three steps on a GPU, or on what stands in for one.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

STEPS = 3


class Big(nn.Linear):
    """Its gradient is near 100: 2^16 times that is more than fp16 holds, 2^6 times that is not."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(4, 1, bias=False)


def rows():
    return torch.full((8 * STEPS, 4), 100.0)


def determined(line, how):
    """Scale the loss in the trial, or let the framework do it; or train in a region that the line opens."""
    from determined import pytorch

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            if how == "automatic":
                context.experimental.use_amp()
            if how != "region":
                exec(line)
            self.model = context.wrap_model(Big())
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 1e-3))

        def train_batch(self, batch, epoch_idx, batch_idx):
            context, held = self.context, {"torch": torch, "self": self, "batch": batch}
            region = line if how == "region" else 'with torch.autocast("cuda", torch.float16):'
            exec(f"{region}\n    loss = self.model(batch).mean()", held)
            loss, scaler = held["loss"], getattr(self, "scaler", None)
            context.backward(loss if scaler is None else scaler.scale(loss))
            context.step_optimizer(self.optimizer, scaler=scaler)
            if scaler is not None:
                scaler.update()
            return {"loss": loss.float()}

        def evaluate_batch(self, batch):
            return {"loss": 0.0}

        def build_training_data_loader(self):
            return pytorch.DataLoader(rows(), 8)

        def build_validation_data_loader(self):
            return pytorch.DataLoader(rows(), 8)

    with pytorch.init() as context:
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(STEPS))


def ultralytics(line):
    """Train a small detector on the pictures in the folder `data`, whose loss is large for fp16."""
    import ultralytics.engine.trainer

    # It compares two detections of a network that it would have to download.
    ultralytics.engine.trainer.check_amp = lambda _: True
    model = ultralytics.YOLO("yolo11n.yaml")
    options = {"epochs": 1, "imgsz": 32, "batch": 4, "nbs": 4, "workers": 0, "device": 0, "cls": 16.0}
    options |= {"data": "data/data.yaml", "project": str(Path.cwd()), "plots": False, "val": False}
    if line.startswith("model.train("):
        options |= eval(line.replace("model.train", "dict"))
    else:
        exec(line)
    model.train(**options)


def megatron(line):
    """Train weights in half by Megatron Core's optimizer, with the options of a command line of Megatron's."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig

    words = line.split()
    low = torch.float16 if "--fp16" in words else torch.bfloat16
    options = {"fp16": "--fp16" in words, "bf16": "--bf16" in words, "params_dtype": low}
    if "--initial-loss-scale" in words:
        options["initial_loss_scale"] = float(words[words.index("--initial-loss-scale") + 1])
    kind = torch.Tensor.type
    # It refuses weights that do not say that they lie on a GPU.
    torch.Tensor.type = lambda own, *to: kind(own, *to) if to else kind(own).replace("torch.", "torch.cuda.")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    shape = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, params_dtype=low)
    model = DistributedDataParallel(shape, DistributedDataParallelConfig(), Big().cuda().to(low))
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="sgd", lr=1e-3, clip_grad=0.0, **options), [model]
    )
    for batch in rows().cuda().to(low).split(8):
        optimizer.zero_grad()
        model.zero_grad_buffer()
        optimizer.scale_loss(model(batch).float().mean()).backward()
        model.finish_grad_sync()
        scale = optimizer.get_loss_scale().item()
        print("stepped" if optimizer.step()[0] else "skipped", "at", scale)
    torch.distributed.destroy_process_group()


def megatron_lm(line):
    """Let Megatron-LM's own command line read the options."""
    sys.argv[1:] = line.split()
    from megatron.training.arguments import parse_args

    read = parse_args()
    print(read.fp16, read.bf16, read.initial_loss_scale)


def torchtitan(line):
    """Build TorchTitan's smallest model with the options of a command line, and say what its layers compute in."""
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.config import TORCH_DTYPE_MAP, ConfigManager
    from torchtitan.models.llama3.parallelize import apply_fsdp_to_decoder

    words = ["--module", "llama3", "--config", "llama3_debugmodel", *line.split()]
    trainer = ConfigManager().parse_args(words)
    model, asked = trainer.model_spec.model.build(), trainer.training
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    low, wide = (
        TORCH_DTYPE_MAP[name] for name in (asked.mixed_precision_param, asked.mixed_precision_reduce)
    )
    apply_fsdp_to_decoder(model, mesh, param_dtype=low, reduce_dtype=wide, pp_enabled=False)
    for layer in model.layers.values():
        policy = layer._get_fsdp_state()._mp_policy
        print(policy.param_dtype, policy.reduce_dtype)
    torch.distributed.destroy_process_group()


def deepspeed(line, stage):
    """Train by DeepSpeed's engine on a CPU, which it believes to compute in fp16."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    type(get_accelerator()).is_fp16_supported = lambda _: True
    own = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": int(stage)}}
    own |= {"zero_allow_untested_optimizer": True}
    model = Big()
    trained = torch.optim.SGD(model.parameters(), 1e-3)
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, optimizer=trained, config=own | json.loads(line)
    )
    for batch in rows().split(8):
        scale, skipped = getattr(optimizer, "cur_scale", 1.0), engine.skipped_steps
        engine.backward(engine(batch.to(next(engine.parameters()).dtype)).float().mean())
        engine.step()
        print("skipped" if engine.skipped_steps > skipped else "stepped", "at", float(scale))
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
