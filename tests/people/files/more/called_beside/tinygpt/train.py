import os

import numpy as np
import torch

from tinygpt.model import ModelArgs, Transformer

dim = 128
n_layers = 4
n_heads = 4
n_kv_heads = 2
vocab_size = 512
max_seq_len = 128

data = np.memmap(os.path.join("data", "train.bin"), dtype=np.uint16, mode="r")
model_args = dict(dim=dim, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, vocab_size=vocab_size, max_seq_len=max_seq_len)
gptconf = ModelArgs(**model_args)
model = Transformer(gptconf)
model.to("cuda")
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
while True:
    ix = torch.randint(len(data) - max_seq_len, (32,))
    x = torch.stack([torch.from_numpy(data[i:i + max_seq_len].astype(np.int64)) for i in ix]).cuda()
    y = torch.stack([torch.from_numpy(data[i + 1:i + 1 + max_seq_len].astype(np.int64)) for i in ix]).cuda()
    with ctx:
        logits = model(x, y)
        loss = model.last_loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
