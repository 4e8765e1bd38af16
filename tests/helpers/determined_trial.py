"""A trial of Determined's off its cluster, with its automatic AMP or a scaler of one's own.

Run by itself: determined_trial.py auto|wrapped [REPORT]
"""

import sys

import torch
from determined import pytorch
from framework_scripts import net, rows
from torch import nn


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context, how, path):
        self.context, self.path = context, path
        self.scaler = None
        if how == "auto":
            context.experimental.use_amp()
        else:
            self.scaler = context.wrap_scaler(torch.cuda.amp.GradScaler())
        self.model = context.wrap_model(net())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        with torch.cuda.amp.autocast(enabled=self.scaler is not None):
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.context.backward(self.scaler.scale(loss) if self.scaler else loss)
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        if self.scaler:
            self.scaler.update()
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1]).item()}

    def build_training_data_loader(self):
        return pytorch.DataLoader(rows(), 8)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(rows(8), 8)

    def build_callbacks(self):
        if self.path is None:
            return {}
        from ampcheck.integrations.determined import AmpcheckCallback

        return {"ampcheck": AmpcheckCallback(self.context, self.path, every=3, first=1)}


def main(how, path=None):
    with pytorch.init() as context:
        trial = Trial(context, how, path)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(6))
    print(sum(float(p.detach().double().abs().sum()) for p in trial.model.parameters()))


if __name__ == "__main__":
    main(*sys.argv[1:])
