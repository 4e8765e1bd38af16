"""Stage c: the verdict on every case of the zoo on CUDA and on the CPU, in many processes beside each other."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial

from settling.judging import both, paths
from settling.keep import Row
from settling.plan import Scope
from settling.work import Job

#: Processes on one GPU: each holds half a GiB of it for CUDA itself.
_MOST = 12
_SMALL = 2


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield a row for each case; they are all begun with the first one."""
    names = [path.stem for path in paths()]
    if scope.small:
        for name in names[:_SMALL]:
            yield Job(name, partial(both, name, scope.device))
        return
    workers = max(1, min(_MOST, (os.cpu_count() or 2) - 2))
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        begun: dict[str, Future[Row]] = {}

        def result(name: str) -> Row:
            if not begun:
                begun.update({each: pool.submit(both, each, scope.device) for each in names})
            return begun[name].result()

        for name in names:
            yield Job(name, partial(result, name))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
