"""A loop's value: events folded into rounds and back, counted by brute force, and JSON that gives it back."""

import json

from hypothesis import given
from loop_strategies import loops

from ampcheck.values.codec import from_plain, to_plain
from ampcheck.values.loop import Kind, Loop


@given(loops())
def test_json_gives_back_the_very_loop(loop):
    assert from_plain(Loop, json.loads(json.dumps(to_plain(loop), allow_nan=False))) == loop


@given(loops())
def test_the_sequence_is_the_rounds_in_order(loop):
    every = [event for which, times in loop.order for _ in range(times) for event in loop.rounds[which]]
    assert [event for _, event in loop.sequence(repeats=9)] == every
    for kind in Kind:
        assert loop.count(kind) == sum(event.kind is kind for event in every)


@given(loops())
def test_a_shorter_sequence_leaves_out_repeats_only(loop):
    once = list(loop.sequence(repeats=1))
    assert [event for _, event in once] == [e for which, _ in loop.order for e in loop.rounds[which]]
    numbers = [number for number, _ in once]
    assert numbers == sorted(numbers)
