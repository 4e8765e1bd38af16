"""Numbers over steps in the files that TensorBoard reads, written without TensorBoard.

A file is a run of records: length, its checksum, an event in protocol-buffer encoding, its checksum.
"""

import math
import os
import struct
import time
from collections.abc import Iterable
from functools import cache
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TargetError(
                f"expected a folder for TensorBoard, got {str(folder)!r} ({error.strerror}); pass a folder that can "
                "be made"
            ) from error
        self.path = folder / f"events.out.tfevents.{time.time_ns() // 10**9}.{os.getpid()}.ampcheck"

    def add(self, scalars: Iterable[Scalar]) -> None:
        """Append numbers; TensorBoard shows them when it looks next."""
        records = b"".join(record(_event(scalar)) for scalar in scalars if math.isfinite(scalar.value))
        if not records:
            return
        head = b"" if self.path.exists() else record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))
        with self.path.open("ab") as file:
            file.write(head + records)


def record(data: bytes) -> bytes:
    """Return a record that holds these bytes."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    values = []
    for start in range(256):
        value = start
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        values.append(value)
    return tuple(values)


def _masked(data: bytes) -> int:
    """Return a checksum as it is stored: turned, so that checksums of checksums differ."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _event(scalar: Scalar) -> bytes:
    value = _bytes(1, scalar.tag.encode()) + b"\x15" + struct.pack("<f", scalar.value)
    return _double(1, time.time()) + b"\x10" + _varint(scalar.step) + _bytes(5, _bytes(1, value))


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:  # noqa: PLR2004  # seven bits a byte
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
