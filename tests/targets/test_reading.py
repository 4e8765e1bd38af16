"""What a file is, and whose an option after it is: read from its text, and nothing is run."""

import pytest

from ampcheck.targets.arguments import Reads, arguments_of, divided
from ampcheck.targets.reading import read

TRAIN = "def train(model):\n    loss = model(1)\n    loss.backward()\n"
MAIN = "if __name__ == '__main__':\n    "


def written(folder, text, name="f.py"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "script", "line"),
    [
        (TRAIN, False, 0),
        (TRAIN + "if __name__ == '__main__':\n    train(None)\n", True, 0),
        (TRAIN + "train(None)\n", True, 4),
        ("for i in range(3):\n    loss.backward()\n", True, 1),
        ("t = Trainer(model)\nresult = t.train()\n", True, 2),
        ("import lightning as L\nL.Trainer().fit(model)\n", True, 2),
        (
            "class Loop:\n    def go(self):\n        loss.backward()\nif __name__ == '__main__':\n    Loop().go()\n",
            True,
            0,
        ),
        (
            (
                "class Agent:\n    def update(self):\n        loss.backward()\nagent = Agent()\nfor _ in range(3):\n"
                "    agent.update()\n"
            ),
            True,
            5,
        ),
        (
            "class Agent:\n    def update(self):\n        loss.backward()\nagent, d = Agent(), {}\nd.update(a=1)\n",
            False,
            0,
        ),
        ("model.train()\nmodel.eval()\n", False, 0),
        # Gradients without a backward: from torch.autograd.grad or torch.func.
        ("for g in grads:\n    p.grad = g\n    optimizer.step()\n", True, 1),
        ("for a in actions:\n    env.step(a)\n", False, 0),
        (
            "def work(rank):\n    loss.backward()\nif __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n",
            True,
            0,
        ),
        ("import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x\n", False, 0),
        (
            "model = 1\ndef batch(): return 2\n" + TRAIN + "if __name__ == '__main__':\n    train(1)\n",
            False,
            0,
        ),
        (
            "import torch\nnet = Net()\nif __name__ == '__main__':\n    print(net)\nclass Net(torch.nn.Module): ...\n",
            False,
            0,
        ),
        ("this is no python", False, 0),
    ],
)
def test_a_file_that_trains_is_a_script(tmp_path, text, script, line):
    found = read(written(tmp_path, text))
    assert found.script is script
    assert found.trains_on_import == line


def test_training_in_a_file_beside_is_followed(tmp_path):
    written(tmp_path, TRAIN, "loops.py")
    assert read(
        written(tmp_path, "from loops import train\nif __name__ == '__main__':\n    train(1)\n")
    ).script
    written(tmp_path, "class Runner:\n    def go(self):\n        loss.backward()\n", "runner.py")
    assert read(written(tmp_path, "import runner\nrunner.Runner().go()\n", "g.py")).trains_on_import == 2


PARSER = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.add_argument('--steps', type=int)\n"
    "p.add_argument('--arch', choices=['a', 'b'], required=True)\np.add_argument('--lr', '-l', default=0.1)\n"
)


def takes(word, follows):
    return {"-o": 2, "--steps": 2, "--as-cpu": 1}.get(word.partition("=")[0], 0)


def test_an_option_that_the_script_declares_is_the_scripts(tmp_path):
    arguments = arguments_of(written(tmp_path, PARSER))
    assert arguments.reads is Reads.DECLARED
    words = ["here", "--steps", "3", "-o", "r.html", "--as-cpu", "-l", "2", "--", "-o", "x"]
    assert divided(words, arguments, takes) == (
        ["-o", "r.html", "--as-cpu"],
        ["here", "--steps", "3", "-l", "2", "-o", "x"],
    )


def test_arguments_that_are_missing_are_named_with_an_example(tmp_path):
    arguments = arguments_of(written(tmp_path, PARSER))
    missing = arguments.missing(["--lr", "3"])
    examples = [one.example(tmp_path) for one in missing]
    assert examples == [(["DATA"], False), (["--arch", "a"], True)]  # of the first nobody knows what would do
    assert [one.flags for one in arguments.missing(["folder", "--arch=b"])] == []
    assert arguments.missing(["--help"]) == []


def test_a_script_that_reads_nothing_leaves_all_known_options_to_ampcheck(tmp_path):
    arguments = arguments_of(written(tmp_path, TRAIN))
    assert arguments.reads is Reads.NOTHING
    assert divided(["-o", "r.json", "--its", "own"], arguments, takes) == (["-o", "r.json"], ["--its", "own"])


def test_where_nobody_can_tell_a_word_of_the_script_is_the_scripts(tmp_path):
    arguments = arguments_of(written(tmp_path, "import click\n@click.option('--steps')\ndef f(steps): ...\n"))
    assert arguments.reads is Reads.UNKNOWN
    assert divided(["--steps", "3", "-o", "r.json"], arguments, takes) == (["-o", "r.json"], ["--steps", "3"])
