"""A script that torchrun is to start is told from one that does without, and is given what torchrun gives."""

import os

import pytest

from ampcheck.targets.torchrun import as_one_rank, needs_torchrun

PLAIN = "import os, torch.distributed as dist\n"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("dist.init_process_group('nccl')\n", True),
        ("rank = int(os.environ['LOCAL_RANK'])\n", True),
        ("if 'RANK' in os.environ:\n    dist.init_process_group('nccl')\n", False),
        ("dist.init_process_group('gloo', rank=0, world_size=1)\n", False),
        ("torch.multiprocessing.spawn(main)\ndist.init_process_group('nccl')\n", False),
        ("print(os.environ.get('RANK', 0))\n", False),
    ],
)
def test_the_environment_of_one_rank_is_there_while_a_script_needs_it(tmp_path, monkeypatch, text, needed):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "train.py"
    path.write_text(PLAIN + text)
    assert needs_torchrun(path) == needed
    with as_one_rank(path) as given:
        assert given == needed
        assert (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == (
            ("0", "1") if needed else (None, None)
        )
    assert "RANK" not in os.environ
    monkeypatch.setenv("RANK", "1")  # torchrun itself
    assert not needs_torchrun(path)
