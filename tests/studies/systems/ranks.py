"""Training on two ranks: `torchrun --nproc-per-node 2 ranks.py NAME`."""

import json
import sys

import torch
import torch.distributed as dist
from systems_common import batches, digest, loss_of, net, parameters, train
from torch.distributed.device_mesh import init_device_mesh


def ddp():
    model = torch.nn.parallel.DistributedDataParallel(net())
    digest(
        train(model, torch.optim.AdamW(model.parameters(), 1e-3), torch.amp.GradScaler("cpu")),
        parameters(model),
    )


def _fsdp1(dtype, boom=None):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    policy = MixedPrecision(param_dtype=dtype, reduce_dtype=dtype)
    cpu = torch.device("cpu")
    model = FullyShardedDataParallel(net(), mixed_precision=policy, use_orig_params=True, device_id=cpu)
    _sharded(model, ShardedGradScaler("cpu", enabled=dtype is torch.float16, growth_interval=3), boom)


def fsdp1_bf16():
    _fsdp1(torch.bfloat16)


def fsdp1_fp16():
    _fsdp1(torch.float16)


def fsdp1_overflow():
    _fsdp1(torch.float16, boom=4)


def _fsdp2(dtype, boom=None):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = net()
    for at in (0, 2, 4):
        fully_shard(model[at], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    _sharded(model, ShardedGradScaler("cpu", enabled=dtype is torch.float16, growth_interval=3), boom)


def fsdp2_bf16():
    _fsdp2(torch.bfloat16)


def fsdp2_fp16():
    _fsdp2(torch.float16)


def fsdp2_overflow():
    _fsdp2(torch.float16, boom=4)


def _sharded(model, scaler, boom=None):
    """Train; where a step is named, rank 1 overflows in it, and each rank prints its scales and what it skipped."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rank, losses, scales, skipped = dist.get_rank(), [], [scaler.get_scale()], []
    for step, (x, y) in enumerate(batches()):
        before = [getattr(one, "_local_tensor", one).detach().clone() for one in parameters(model)]
        optimizer.zero_grad()
        loss = loss_of(model((x + rank) * (1e6 if step == boom and rank == 1 else 1.0)), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
        after = [getattr(one, "_local_tensor", one).detach() for one in parameters(model)]
        skipped += [step] if all(map(torch.equal, before, after)) else []
    if boom is not None:
        sys.stdout.write(f"SCALES {json.dumps([rank, scales, skipped])}\n")
    digest(losses, parameters(model))


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(net(), mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    digest(train(model, optimizer, dtype=torch.bfloat16), parameters(model))


def tensor_parallel_in_bf16():
    """The same with weights in bfloat16, outside autocast."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(net().bfloat16(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(model(x.bfloat16()), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest(losses, parameters(model))


class Stage(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x)


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    model = Stage(net()[:3] if rank == 0 else net()[3:])
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        found = []
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": found} if rank else {}))
        optimizer.step()
        losses += [loss.item() for loss in found]
    digest(losses, parameters(model))


def waits_in_turn():
    """Send and receive beside a sum that nobody has waited for yet: whoever waits for it early waits for ever."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    rank, losses = dist.get_rank(), []
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model[:3](x)
            total, note = hidden.detach().float().clone(), torch.zeros(1)
            if rank == 0:
                work = dist.all_reduce(total, async_op=True)
                dist.send(note + 1, 1)
            else:
                dist.recv(note, 0)
                work = dist.all_reduce(total, async_op=True)
            work.wait()
            loss = loss_of(model[3:](hidden + 1e-3 * total), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() + float(note))
    digest(losses, parameters(model))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.destroy_process_group()
