import argparse
import sys
from pathlib import Path

import torch
import yaml

from models import build


def get_loader(cfg):
    x = torch.randn(cfg["n"], 8, cfg["length"]).cumsum(-1) * 0.1
    y = x[:, :, -1].mean(1) + 0.1 * torch.randn(cfg["n"])
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), cfg["batch_size"], shuffle=True)


def main(argv=None):
    ap = argparse.ArgumentParser(description="Train a forecasting model")
    ap.add_argument("-c", "--config", required=True, help="yaml config, e.g. configs/base.yaml")
    ap.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    args = ap.parse_args(argv)
    cfg = yaml.safe_load(Path(args.config).read_text())
    torch.manual_seed(cfg["seed"])
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(cfg["model"]).to(dev)
    opt = getattr(torch.optim, cfg["optim"]["name"])(model.parameters(), lr=cfg["optim"]["lr"])
    amp = cfg["train"]["amp"]
    scaler = torch.amp.GradScaler(dev.type, enabled=amp)
    for epoch in range(cfg["train"]["epochs"]):
        for i, (x, y) in enumerate(get_loader(cfg["data"])):
            with torch.autocast(dev.type, dtype=torch.float16, enabled=amp):
                loss = torch.nn.functional.huber_loss(model(x.to(dev)), y.to(dev)) / cfg["train"]["accum"]
            scaler.scale(loss).backward()
            if (i + 1) % cfg["train"]["accum"] == 0:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        print(f"epoch {epoch}: {loss.item():.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
