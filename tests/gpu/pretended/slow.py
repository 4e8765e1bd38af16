"""Takes its time in every row."""

import time

from settling.work import Job


def row():
    time.sleep(0.4)
    return {"at": time.time_ns()}


def jobs(_scope):
    for at in range(6):
        yield Job(f"row {at}", row)
