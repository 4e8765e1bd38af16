"""Notebooks: one as a target, and a cell with `%%ampcheck` above it in a shell that does what IPython does."""

import ast
import json
import types

import pytest

import ampcheck
from ampcheck.cli import main
from ampcheck.targets.notebook import code_of

SETUP = "%matplotlib inline\nimport torch\nfrom torch import nn\n!pip list\nmodel = nn.Linear(4, 2)"
TRAIN = """optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for step in range(12):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(8, 4, device="cuda")).float().square().mean()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()"""


def notebook(*sources):
    cells = [{"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# a title"]}, *cells], "nbformat": 4})


def test_a_notebook_is_audited_as_the_script_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = TRAIN.replace("model.parameters(), lr", 'model.to("cuda").parameters(), lr')
    (tmp_path / "nb.ipynb").write_text(notebook(SETUP, "%%bash\nrm -rf /nothing", train))
    assert main(["nb.ipynb"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("ampcheck nb.ipynb · Linear · fp16")
    line = (
        code_of(tmp_path / "nb.ipynb")
        .splitlines()
        .index("    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    )
    assert f"error[AMP401] clip-before-unscale  nb.ipynb:{line + 1}" in text
    assert [path.name for path in tmp_path.iterdir()] == ["nb.ipynb"]


def test_what_only_a_notebook_understands_is_left_out(tmp_path):
    path = tmp_path / "nb.ipynb"
    path.write_text(notebook("if True:\n    %time x = 1\n    y = 2", "%%time\nz = 3", "%%html\n<b>"))
    names = {}
    exec(compile(ast.parse(code_of(path)), "nb", "exec"), names)
    assert (names["y"], names["z"]) == (2, 3)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no notebook"):
        code_of(path)


class Shell:
    """Holds the magics and the names of a notebook."""

    def __init__(self):
        self.user_ns, self.magics = {}, {}

    def register_magic_function(self, function, kind, name):
        assert kind == "cell"
        self.magics[name] = function

    def run_cell(self, cell):
        error = None
        try:
            exec(cell, self.user_ns)
        except Exception as raised:  # noqa: BLE001  # as IPython does
            error = raised
        return types.SimpleNamespace(error_in_exec=error)


def test_a_cell_is_watched_and_its_page_is_shown(capsys):
    shell = Shell()
    ampcheck.load_ipython_extension(shell)
    shell.run_cell(SETUP.replace("%matplotlib inline\n", "").replace("!pip list\n", ""))
    report = shell.magics["ampcheck"]("", TRAIN)
    assert "AMP401" in {finding.code for finding in report.findings}
    assert report._repr_html_().startswith("<iframe")
    assert shell.magics["ampcheck"]("", "x = 1") is None
    assert "no training step was seen" in capsys.readouterr().out
    assert shell.magics["ampcheck"]("--what-if fp17", "x = 2") is None
    assert shell.user_ns["x"] == 1
