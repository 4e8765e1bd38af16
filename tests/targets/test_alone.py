"""Which models of a script can be audited without its data: read from its text."""

from pathlib import Path

import pytest

from ampcheck.targets.alone import models_alone

MODULE = "class {}(nn.Module):\n    def forward(self, x):\n        return {}\n"
OWN = MODULE.format("Part", "x") + MODULE.format("Net", "Part()(x)") + MODULE.format("DiceLoss", "x.sum()")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OWN, ["train.py:Net"]),
        ("class Base(nn.Module): ...\n" + OWN.replace("Part(nn.Module)", "Part(Base)"), ["train.py:Net"]),
        ("from models import Deep\n", ["models/deep.py:Deep"]),
        ("from models import build\nnet = build('x')\n", ["models/deep.py:Deep"]),
        ("import timm\nnet = timm.create_model('resnet18', pretrained=True)\n", ["timm:resnet18"]),
        (
            "from torchvision import models\nnet = models.resnet50(weights='DEFAULT')\n",
            ["torchvision:resnet50"],
        ),
        ("from torchvision.models import vgg11, VGG11_Weights\nnet = vgg11()\n", ["torchvision:vgg11"]),
        ("net = load()\n", []),
        ("def broken(:\n", []),
    ],
)
def test_the_models_of_a_script_are_named(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/__init__.py").write_text("from .deep import Deep\ndef build(name): return Deep()\n")
    Path("models/deep.py").write_text(OWN.replace("Net", "Deep"))
    Path("train.py").write_text(text)
    assert models_alone(tmp_path / "train.py") == expected
