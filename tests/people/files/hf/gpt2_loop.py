import argparse
import math

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser(description="Causal LM training without the Trainer")
parser.add_argument("--seq_len", type=int, default=32)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--vocab", type=int, default=256)
parser.add_argument("--fp16", action="store_true", default=True)


def batches(n, vocab, length):
    base = torch.arange(length) % vocab
    return [{"input_ids": (base + i) % vocab, "labels": (base + i) % vocab} for i in range(n)]


def main():
    args = parser.parse_args()
    device = "cuda"
    model = GPT2LMHeadModel(GPT2Config(vocab_size=args.vocab, n_positions=64, n_embd=32, n_layer=2, n_head=2))
    model.to(device)
    loader = DataLoader(batches(512, args.vocab, args.seq_len), batch_size=args.batch_size, shuffle=True)
    optimizer = AdamW(model.parameters(), lr=args.lr)
    scheduler = get_linear_schedule_with_warmup(optimizer, 4, args.max_steps)
    model.train()
    step = 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.fp16):
            outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} ppl {math.exp(loss.item()):.1f}")
        if step >= args.max_steps:
            break


if __name__ == "__main__":
    main()
