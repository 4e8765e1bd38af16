"""The process dies in the second row, as in a fault of a driver."""

import os
import signal

from settling.work import Job


def jobs(_scope):
    yield Job("good", lambda: {"found": 1})
    yield Job("fatal", lambda: os.kill(os.getpid(), signal.SIGKILL))
    yield Job("after", lambda: {"found": os.getpid()})
