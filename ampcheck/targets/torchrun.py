"""Scripts that torchrun is to start: what it puts into the environment, for one process."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from ampcheck.targets.reading import sources_of

#: What reads a rank that torchrun gives, and what shows that a script does without, or starts its ranks itself.
_NEEDS = re.compile(r"""environ\[\s*['"](LOCAL_)?RANK['"]|init_process_group\(""")
_ASKS = re.compile(
    r"""['"](LOCAL_)?(RANK|WORLD_SIZE)['"]\s+(not\s+)?in\s|mp\.spawn|multiprocessing|init_method|\brank=|store="""
)


def needs_torchrun(path: Path) -> bool:
    """Tell whether a script, or what it imports from beside it, takes for granted that torchrun has started it."""
    text = "\n".join(source.text for source in sources_of(path))
    return "RANK" not in os.environ and bool(_NEEDS.search(text)) and not _ASKS.search(text)


@contextmanager
def as_one_rank(path: Path) -> Iterator[bool]:
    """Give a script that needs it the environment of the only process that torchrun would start; tell whether."""
    if not needs_torchrun(path):
        yield False
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    with patch.dict(os.environ, {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}):
        yield True
