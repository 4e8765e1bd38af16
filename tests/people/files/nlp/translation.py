"""Toy translation: reverse a sequence with nn.Transformer."""
import argparse
import logging
import math

import torch
import torch.nn as nn

logger = logging.getLogger(__name__)
PAD, BOS, EOS = 0, 1, 2


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=128):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Seq2SeqTransformer(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, d_model, nhead, num_layers):
        super().__init__()
        self.src_emb = nn.Embedding(src_vocab, d_model, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model, padding_idx=PAD)
        self.pos = PositionalEncoding(d_model)
        self.transformer = nn.Transformer(d_model, nhead, num_layers, num_layers, 2 * d_model, batch_first=True)
        self.generator = nn.Linear(d_model, tgt_vocab)

    def forward(self, src, tgt):
        mask = torch.triu(torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool, device=tgt.device), 1)
        h = self.transformer(self.pos(self.src_emb(src)), self.pos(self.tgt_emb(tgt)), tgt_mask=mask,
                             src_key_padding_mask=src == PAD, tgt_key_padding_mask=tgt == PAD)
        return self.generator(h)


def make_batch(n, length, vocab, device):
    src = torch.randint(3, vocab, (n, length), device=device)
    bos = torch.full((n, 1), BOS, device=device)
    eos = torch.full((n, 1), EOS, device=device)
    tgt = torch.cat([bos, src.flip(1), eos], 1)
    return src, tgt


def train(args):
    device = args.device
    model = Seq2SeqTransformer(args.vocab, args.vocab, args.d_model, args.heads, args.layers).to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=1e-9)
    scaler = torch.cuda.amp.GradScaler()
    for step in range(1, args.steps + 1):
        src, tgt = make_batch(args.batch_size, 12, args.vocab, device)
        with torch.cuda.amp.autocast():
            logits = model(src, tgt[:, :-1])
            loss = criterion(logits.reshape(-1, logits.size(-1)), tgt[:, 1:].reshape(-1))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            logger.info("step %d loss %.3f", step, loss.item())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--vocab", type=int, default=40)
    p.add_argument("--d-model", type=int, default=32)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--layers", type=int, default=1)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--batch-size", type=int, default=16)
    train(p.parse_args())
