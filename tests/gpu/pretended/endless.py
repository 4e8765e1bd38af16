"""The second row never ends, and neither does the process it started."""

import subprocess
import sys
import time

from settling.work import Job


def endless():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (FOLDER / "child").write_text(str(child.pid))
    time.sleep(600)
    return {}


def jobs(scope):
    global FOLDER  # noqa: PLW0603
    FOLDER = scope.folder.parent
    yield Job("good", lambda: {"found": 1})
    yield Job("endless", endless)
    yield Job("never reached", lambda: {"found": 3})
