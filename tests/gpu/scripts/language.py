"""A small decoder in fp16 whose gradients are summed over two batches; the scale grows and is cut back."""

import torch
from torch import nn
from torch.nn import functional

torch.use_deterministic_algorithms(mode=True)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Decoder(nn.Module):
    """Two layers of attention."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 64)

    def forward(self, tokens):
        """Return the logits of each next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))


model = Decoder().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0**16, growth_interval=4)
text = (torch.arange(4096) * 7 + torch.arange(4096) // 5) % 64

for step in range(40):
    optimizer.zero_grad()
    for part in range(2):
        places = torch.arange(8)[:, None] * 97 + torch.arange(33) + 61 * (2 * step + part) % 3000
        tokens = text[places % 4096].to(device)
        with torch.autocast(device, dtype=torch.float16):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
