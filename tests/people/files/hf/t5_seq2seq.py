from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)


@dataclass
class ModelArguments:
    d_model: int = field(default=32, metadata={"help": "Width of the model."})
    num_layers: int = field(default=2)
    vocab_size: int = field(default=128)


@dataclass
class DataArguments:
    n_train: int = field(default=200)
    max_length: int = field(default=16)


class CopyDataset(Dataset):
    def __init__(self, args: DataArguments, vocab: int):
        self.x = torch.randint(2, vocab, (args.n_train, args.max_length))

    def __len__(self):
        return self.x.size(0)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "labels": self.x[i].flip(0)}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments))
    margs, dargs = parser.parse_args_into_dataclasses()
    set_seed(0)
    config = T5Config(vocab_size=margs.vocab_size, d_model=margs.d_model, d_kv=8, d_ff=64, num_layers=margs.num_layers,
                      num_heads=4, decoder_start_token_id=0, dropout_rate=0.0)
    model = T5ForConditionalGeneration(config)
    targs = Seq2SeqTrainingArguments(
        output_dir="t5_out", max_steps=30, per_device_train_batch_size=4, bf16=True, learning_rate=1e-3,
        logging_steps=5, save_strategy="steps", save_steps=10, report_to=[], disable_tqdm=True, gradient_checkpointing=True)
    trainer = Seq2SeqTrainer(model=model, args=targs, train_dataset=CopyDataset(dargs, margs.vocab_size))
    result = trainer.train()
    print(result.metrics)


if __name__ == "__main__":
    main()
