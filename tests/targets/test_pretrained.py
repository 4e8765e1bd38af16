"""A model whose pretrained weights cannot be downloaded is built with random ones, and that is said."""

import urllib.error
from pathlib import Path

import pytest
import torch
from torch import nn

from ampcheck.errors import TargetError
from ampcheck.targets import Options, load
from ampcheck.targets.pretrained import random_weights, unfetched

FILE = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {}
    def forward(self, x):
        return self.f(x)
"""
HUB = "self.f = nn.Linear(4, 2); self.load_state_dict(torch.hub.load_state_dict_from_url('https://nowhere.invalid/x.pt'))"
VISION = "import torchvision; self.f = torchvision.models.squeezenet1_1(weights='DEFAULT')"
TIMM = "import timm; self.f = timm.create_model('test_resnet.r160_in1k', pretrained=True)"


def refuses(*_, **__):
    raise urllib.error.URLError("no network")


@pytest.mark.parametrize("made", [HUB, VISION, TIMM])
def test_a_model_without_its_download_has_random_weights(tmp_path, monkeypatch, made):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuses)
    for module, name in (
        (pytest.importorskip("torchvision.models._api"), "load_state_dict_from_url"),
        (pytest.importorskip("timm.models._builder"), "load_state_dict_from_hf"),
    ):
        monkeypatch.setattr(module, name, refuses)
    Path("net.py").write_text(FILE.format(made))
    target = load("net.py", Options(device="cpu"))
    assert type(target.model).__name__ == "Net"
    assert "weights are random: pretrained ones could not be loaded (URLError)" in target.notes
    assert torch.hub.load_state_dict_from_url is refuses
    with pytest.raises(TypeError):
        nn.Linear(4, 2).load_state_dict(None)  # only while it was built
    torch.save(target.model.state_dict(), "mine.pt")
    given = load("net.py", Options(device="cpu", weights=Path("mine.pt")))
    assert not [note for note in given.notes if note.startswith("weights are random")]


def test_other_errors_stay_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE.format("raise FileNotFoundError('weights.pt')"))
    with pytest.raises(TargetError, match=r"weights\.pt"):
        load("net.py", Options(device="cpu"))
    assert unfetched(FileNotFoundError("weights.pt")) is None
    with random_weights():
        wide, low = nn.Linear(4, 2), nn.Linear(4, 2)
        low.load_state_dict(wide.state_dict())
    assert torch.equal(low.weight, wide.weight)
