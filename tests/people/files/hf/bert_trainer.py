"""Fine-tune a (randomly initialised, small) BERT with the Trainer."""
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class ToyReviews(Dataset):
    def __init__(self, n=256, length=24, vocab=200):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, vocab, (n, length), generator=g)
        self.labels = (self.ids[:, :4].sum(1) % 2).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.labels[i]}


def compute_metrics(pred):
    return {"accuracy": float((np.argmax(pred.predictions, axis=-1) == pred.label_ids).mean())}


def main():
    config = BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=32, num_labels=2)
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        output_dir="./results",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=5e-4,
        warmup_steps=5,
        weight_decay=0.01,
        fp16=True,
        logging_steps=8,
        save_steps=16,
        report_to="none",
    )
    trainer = Trainer(model=model, args=args, train_dataset=ToyReviews(), eval_dataset=ToyReviews(32), compute_metrics=compute_metrics)
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model("./final")


if __name__ == "__main__":
    main()
