"""A model trained on one rank, or on two by DDP or FSDP2, on numbers that every order of adding gives exactly.

Run by itself: ranks_script.py ddp|fsdp|apart|alone [exact|overflow] [cuda]; apart, the ranks have a model each and
add nothing up. All values are whole numbers so small that even sums of products fit into fp16's eleven bits, so a
batch's halves add up to the batch, bit for bit.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

ROWS = 8


def net():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))
    return model


def wrapped(how, device):
    model = net().to(device)
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0])
        fully_shard(model[2])
        return fully_shard(model)
    return model


def train(how="alone", steps=2, tail="", kind="cpu"):
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if how != "alone" else (0, 1)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    model = wrapped(how, device)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**8)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randint(-1, 2, (ROWS, 4), generator=generator).float()
        mine = x[rank * ROWS // ranks : (rank + 1) * ROWS // ranks].to(device)
        if tail == "overflow" and rank == 1 and step == 1:
            mine = mine * 60000
        optimizer.zero_grad()
        with torch.autocast(kind, torch.float16, enabled=bool(tail)):
            loss = model(mine).float().square().sum() / len(mine)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    how, *tail = sys.argv[1:]
    if "RANK" in os.environ:
        gpus = "cuda" in tail
        if gpus:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if gpus else "gloo")
    train(how, 2, *tail)
    if dist.is_initialized():
        dist.destroy_process_group()
