"""Trainer on a checkpoint that was loaded in bf16."""
import tempfile
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)


class Toy(torch.utils.data.Dataset):
    def __init__(self, n=256):
        self.x = torch.randint(5, 100, (n, 16))
        self.y = (self.x == 7).any(1).long()
        k = torch.arange(0, n, 2)
        self.x[k, torch.randint(0, 16, (len(k),))] = 7
        self.y[k] = 1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return dict(input_ids=self.x[i], labels=self.y[i])


cfg = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                 max_position_embeddings=32, num_labels=2)
model = BertForSequenceClassification(cfg).to(torch.bfloat16)
before = {n: p.detach().clone() for n, p in model.named_parameters()}
args = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=16, max_steps=40, learning_rate=1e-5,
                         warmup_steps=4, bf16=True, use_cpu=True, report_to=[], save_strategy="no", logging_steps=20,
                         disable_tqdm=True)
Trainer(model, args, train_dataset=Toy()).train()
same = {n: (p.detach() == before[n]).float().mean().item() for n, p in model.named_parameters()}
print("unchanged", sum(same.values()) / len(same))
