"""Ordinary files, written by nobody who knew ampcheck: what `ampcheck FILE` comes to. `score.py` prints the table."""

import pytest
from people.score import HERE, cases, line, run, totals

from ampcheck.targets.reading import read

CASES = {f"{case.kind}/{case.name}": case for case in cases()}
#: A road each: a script, a script with a planted bug, a model, several models.
FEW = ("rnn/char_rnn", "rl/networks", "gan/pix2pix_models", "more/graph_amp", "more/arguments")
MOST_MISSED = 2


def test_there_are_five_of_each_of_eight_kinds():
    kinds = [case.kind for case in CASES.values() if case.kind != "more"]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(kinds, 5)
    assert len(set(kinds)) == 8


@pytest.mark.parametrize("name", CASES)
def test_what_trains_is_told_from_what_does_not(name):
    assert read(CASES[name].path).script == (CASES[name].road == "script")


@pytest.mark.long
@pytest.mark.parametrize("name", FEW)
def test_an_ordinary_file_reaches_its_verdict(name):
    row = run(CASES[name])
    assert row.good, f"{line(row)}\n{row.output}"


@pytest.mark.long
@pytest.mark.people
def test_ordinary_files_reach_their_verdicts():
    rows = [run(case) for case in CASES.values()]
    told = "\n".join([*map(line, rows), totals(rows)])
    assert sum(row.reached for row in rows) >= len(CASES) - MOST_MISSED, told
    assert sum(row.right for row in rows) >= len(CASES) - MOST_MISSED, told
    assert all(row.right or not row.named for row in rows), told
    assert all(row.bugs and row.quiet and not row.left for row in rows), told
    assert HERE.is_dir()
