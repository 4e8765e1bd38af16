"""What a stage found, row by row: each row is on disk before the next one begins."""

import json
import os
from pathlib import Path
from typing import Any

from settling.plan import BY_NAME, FILES, ROOM

#: A stage that ran to its end.
COMPLETE = "complete"

Row = dict[str, Any]


class Keep:
    """The part of one stage in its file."""

    def __init__(self, folder: Path, stage: str, machine: Row | None = None) -> None:
        """Take up what is there."""
        self._stage = stage
        self._path = folder / BY_NAME[stage].file
        self._whole = read(self._path)
        if machine is not None:
            if _lasting(self._whole["machine"]) != _lasting(machine):
                self._whole = {"machine": machine, "stages": {}}
            self._whole["machine"] = machine
        part = self._whole["stages"].setdefault(stage, {"ended": "cut", "seconds": 0.0, "rows": {}})
        self.part: Row = part

    @property
    def complete(self) -> bool:
        """Tell whether the stage ran to its end without an error."""
        return self.part["ended"] == COMPLETE and not any(
            "error" in row for row in self.part["rows"].values()
        )

    def has(self, key: str) -> bool:
        """Tell whether a row is there; one that is an error is to be tried again."""
        return "error" not in self.part["rows"].get(key, {"error": ""})

    def put(self, key: str, row: Row) -> None:
        """Keep a row; one that would make the file too large becomes an error."""
        self.part["rows"][key] = row
        if len(self._text()) > ROOM // len(FILES):
            self.part["rows"][key] = {"error": f"left out: {self._path.name} would be larger than it may be"}
        self._write()

    def end(self, how: str, seconds: float) -> None:
        """Say how the stage ended, and how long it took, this time and before."""
        self.part["ended"] = how
        self.part["seconds"] = round(self.part["seconds"] + seconds, 1)
        self._write()

    def forget(self) -> None:
        """Drop the stage; a file without one is removed."""
        del self._whole["stages"][self._stage]
        if self._whole["stages"]:
            self._write()
        else:
            self._path.unlink(missing_ok=True)

    def _text(self) -> str:
        return _dumped(self._whole)

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".partial.json")
        beside.write_text(self._text(), encoding="utf-8")
        os.replace(beside, self._path)


def _lasting(machine: Row) -> Row:
    """Return what has to be the same for rows to stand in one file."""
    return {name: value for name, value in machine.items() if name not in {"day", "commit"}}


def read(path: Path) -> Row:
    """Return a file's content, or an empty one."""
    if not path.exists():
        return {"machine": {}, "stages": {}}
    found: Row = json.loads(path.read_text(encoding="utf-8"))
    return found


def _dumped(whole: Row) -> str:
    """Return JSON with a row a line, so that differences between two runs can be read."""
    stages = []
    for name, part in whole["stages"].items():
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in part["rows"].items())
        head = f'"ended": {json.dumps(part["ended"])}, "seconds": {part["seconds"]}'
        stages.append(f' {json.dumps(name)}: {{{head}, "rows": {{\n{rows}\n }}}}')
    body = ",\n".join(stages)
    return f'{{"machine": {json.dumps(whole["machine"])},\n"stages": {{\n{body}\n}}}}\n'
