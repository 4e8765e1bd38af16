"""Numbers over steps in the files that TensorBoard reads.

They are written with TensorBoard's own parts, and without its writer: that one begins a thread, which a script finds
among its own and waits for, and which a forked process lacks.
"""

import math
import os
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ampcheck.errors import TargetError


class Scalar(NamedTuple):
    """A number at a step."""

    tag: str
    step: int
    value: float


class ScalarFile:
    """A file of scalars that grows; it appears with its first number."""

    def __init__(self, folder: Path) -> None:
        """Choose a new file in a folder, which is made if need be."""
        if not _installed():
            raise TargetError(
                "--tensorboard needs TensorBoard, which is not installed; pip install tensorboard"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TargetError(
                f"expected a folder for TensorBoard, got {str(folder)!r} ({error.strerror}); pass a folder that can "
                "be made"
            ) from error
        self.path = folder.absolute() / f"events.out.tfevents.{int(time.time())}.{os.getpid()}.ampcheck"

    def add(self, scalars: Iterable[Scalar]) -> None:
        """Append numbers; TensorBoard shows them when it looks next."""
        # Late: they import NumPy, which reads the environment that a script may set first.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        events = [
            Event(
                wall_time=now,
                step=scalar.step,
                summary=Summary(value=[Summary.Value(tag=scalar.tag, simple_value=scalar.value)]),
            )
            for scalar in scalars
            if math.isfinite(scalar.value)
        ]
        if not events:
            return
        if not self.path.exists():
            events.insert(0, Event(wall_time=now, file_version="brain.Event:2"))
        with self.path.open("ab") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())


def _installed() -> bool:
    """Tell whether TensorBoard can be imported; a folder of that name with logs in it is something else."""
    try:
        return find_spec("tensorboard.summary") is not None
    except ModuleNotFoundError:
        return False
