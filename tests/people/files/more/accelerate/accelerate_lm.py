import math

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def collate(rows):
    ids = torch.stack(rows)
    return {"input_ids": ids, "labels": ids.clone()}


def main():
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    torch.manual_seed(0)
    train = [torch.randint(0, 1000, (64,)) for _ in range(400)]
    loader = DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=3, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, 100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(2):
        total = 0.0
        for step, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.detach().float()
        accelerator.print(f"epoch {epoch}: ppl {math.exp(total.item() / len(loader)):.1f}")
    accelerator.wait_for_everyone()
    accelerator.save_state("ckpt")


if __name__ == "__main__":
    main()
