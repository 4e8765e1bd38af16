"""A custom model in the transformers way: configuration class, PreTrainedModel, ModelOutput."""
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput


class PoolerConfig(PretrainedConfig):
    model_type = "tiny-pooler"

    def __init__(self, vocab_size=300, hidden_size=48, num_hidden_layers=2, num_heads=4, pad_token_id=0, num_labels=3, **kwargs):
        super().__init__(pad_token_id=pad_token_id, num_labels=num_labels, **kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_heads = num_heads


@dataclass
class PoolerOutput(ModelOutput):
    loss: Optional[torch.FloatTensor] = None
    logits: Optional[torch.FloatTensor] = None


class PoolerPreTrainedModel(PreTrainedModel):
    config_class = PoolerConfig
    base_model_prefix = "pooler"

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)


class PoolerForTokenClassification(PoolerPreTrainedModel):
    def __init__(self, config: PoolerConfig):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(config.hidden_size, config.num_heads, 2 * config.hidden_size, batch_first=True)
            for _ in range(config.num_hidden_layers))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: torch.LongTensor, attention_mask: Optional[torch.Tensor] = None,
                labels: Optional[torch.LongTensor] = None, return_dict: Optional[bool] = None):
        r"""
        input_ids: `(batch, sequence)` token ids.
        labels: `(batch, sequence)` label of every token, -100 to ignore.
        """
        h = self.embed(input_ids)
        pad = attention_mask == 0 if attention_mask is not None else None
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=pad)
        logits = self.classifier(h)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.view(-1, self.config.num_labels), labels.view(-1))
        return PoolerOutput(loss=loss, logits=logits)
