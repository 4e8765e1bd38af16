"""The ranks of a job: each sends its report to the first one, through the store that the job itself made."""

import itertools
import time
import zlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ampcheck.compare.merge import together
from ampcheck.errors import ReportError
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.report import Report

#: Seconds that the first rank waits for the others: they end together, give or take a validation.
PATIENCE = 60.0
#: Watches of one process, so that each has keys of its own; ranks make them in the same order.
_COUNT = itertools.count()


class Ranks:
    """Where this process stands among the ranks of its job."""

    def __init__(self) -> None:
        self._store: Any = None
        self._number = next(_COUNT)
        self.rank, self.size = 0, 1

    def look(self) -> None:
        """Find out whether there are other ranks by now; the store is kept after the group is destroyed."""
        if self._store is None and dist.is_available() and dist.is_initialized():
            self._store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # it has no public name
            self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def first(self) -> bool:
        """Tell whether this rank brings the reports together."""
        return self.rank == 0

    def send(self, report: Report) -> bool:
        """Send a report to the first rank; return False where its store is gone. Nothing is to be done there."""
        if self.first:
            return True
        try:
            self._store.set(self._key(self.rank), zlib.compress(to_json(report).encode()))
        except (RuntimeError, OSError):  # torch's own errors: the process that has the store is dead
            return False
        return True

    def gather(self, report: Report, patience: float = PATIENCE) -> tuple[Report, list[int]]:
        """Return the sum of all ranks' reports on the first rank, the own one elsewhere, and which ranks were heard of.

        They share the time that the first one waits.
        """
        if self.size == 1 or not self.first:
            return report, []
        until = time.monotonic() + patience
        others = {rank: self._receive(rank, until - time.monotonic()) for rank in range(1, self.size)}
        silent = [rank for rank, sent in others.items() if sent is None]
        parts = {"rank 0": report} | {
            f"rank {rank}": sent for rank, sent in others.items() if sent is not None
        }
        whole = together(parts)
        heard = [rank for rank in others if rank not in silent]
        return replace(whole, notes=(*whole.notes, *_missing(silent, patience))), heard

    def _key(self, rank: int) -> str:
        return f"ampcheck/{self._number}/{rank}"

    def _receive(self, rank: int, patience: float) -> Report | None:
        key = self._key(rank)
        try:
            if patience > 0:
                self._store.wait([key], timedelta(seconds=patience))
            elif not self._store.check([key]):
                return None
            return from_json(zlib.decompress(self._store.get(key)))
        except (RuntimeError, OSError, ReportError, zlib.error):  # a rank that has died sends nothing
            return None


def _missing(silent: list[int], patience: float) -> tuple[str, ...]:
    if not silent:
        return ()
    names = ", ".join(f"rank {rank}" for rank in silent)
    return (f"no report came from {names} within {patience:g} s; the figures leave them out",)
