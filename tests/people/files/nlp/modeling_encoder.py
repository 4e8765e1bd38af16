"""BERT-like encoder used by the rest of the code base."""
from dataclasses import dataclass
from typing import Dict, Optional

import torch
from torch import Tensor, nn


@dataclass
class EncoderConfig:
    vocab_size: int
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_position_embeddings: int = 64
    num_labels: int = 3
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2


class Embeddings(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        pos = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.norm(self.word(input_ids) + self.position(pos) + self.token_type(token_type_ids))


class Layer(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.attention = nn.MultiheadAttention(config.hidden_size, config.num_heads, batch_first=True)
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ff = nn.Sequential(nn.Linear(config.hidden_size, 4 * config.hidden_size), nn.GELU(), nn.Linear(4 * config.hidden_size, config.hidden_size))
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        attended, _ = self.attention(hidden, hidden, hidden, key_padding_mask=padding, need_weights=False)
        hidden = self.norm1(hidden + attended)
        return self.norm2(hidden + self.ff(hidden))


class EncoderForSequenceClassification(nn.Module):
    """Encoder with a classification head.

    Args:
        config: the sizes of the model.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_layers)])
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Optional[Tensor] = None,
        token_type_ids: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
    ) -> Dict[str, Tensor]:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        hidden = self.embeddings(input_ids, token_type_ids)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask == 0)
        logits = self.classifier(hidden[:, 0])
        out = {"logits": logits, "hidden_states": hidden}
        if labels is not None:
            out["loss"] = nn.functional.cross_entropy(logits, labels)
        return out
