"""Image classification with accelerate and a ViT from its configuration."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification


class FakeImages(Dataset):
    def __init__(self, count, size, classes):
        self.x = torch.randn(count, 3, size, size)
        self.y = torch.randint(0, classes, (count,))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"pixel_values": self.x[i], "labels": self.y[i]}


def training_function(config, args):
    accelerator = Accelerator(mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.accum)
    set_seed(config["seed"])
    model = ViTForImageClassification(ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=config["num_labels"]))
    train_dl = DataLoader(FakeImages(128, 32, config["num_labels"]), batch_size=config["batch_size"], shuffle=True)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], epochs=config["num_epochs"], steps_per_epoch=len(train_dl))
    model, optimizer, train_dl, scheduler = accelerator.prepare(model, optimizer, train_dl, scheduler)
    for epoch in range(config["num_epochs"]):
        model.train()
        for batch in train_dl:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
    accelerator.save_state("vit_state")
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", type=str, default="bf16", choices=["no", "fp16", "bf16"])
    parser.add_argument("--accum", type=int, default=1)
    args = parser.parse_args()
    training_function({"lr": 3e-3, "num_epochs": 2, "seed": 42, "batch_size": 8, "num_labels": 4}, args)


if __name__ == "__main__":
    main()
