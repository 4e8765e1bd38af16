"""How far an audited script is, said now and then: at the pace since its first step, and no longer than its limit."""

import types

import pytest

from ampcheck.run import limit
from ampcheck.run.limit import AuditOver, Limit


def lines(monkeypatch, capsys, seconds, steps=20):
    """Return what is said of a script that takes ten seconds to its first step and then one for each."""
    clock = [0.0]
    monkeypatch.setattr(limit.time, "monotonic", lambda: clock[0])
    running = Limit(steps, seconds)
    try:
        for number in range(1, steps + 2):
            clock[0] = 9.0 + number
            running.stepped(types.SimpleNamespace(steps=number, tape=types.SimpleNamespace(in_turn=1)))
    except AuditOver:
        pass
    finally:
        running.end()
    assert running.reached
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (60, ["step 2 of 20, about 18 s left", "step 12 of 20, about 8 s left"]),
        (14, ["step 2 of 20, about 3 s left"]),
    ],
)
def test_the_rest_is_estimated(monkeypatch, capsys, seconds, said):
    assert lines(monkeypatch, capsys, seconds) == [f"ampcheck: {line}" for line in said]
