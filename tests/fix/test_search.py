"""The search for the smallest healing set, against brute force over all subsets."""

import time
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ampcheck.fix.search import Search


def smallest(items, heals):
    for size in range(1, len(items) + 1):
        for subset in combinations(items, size):
            if heals(subset):
                return len(subset)
    return None


@given(st.integers(1, 9), st.sets(st.integers(0, 8), min_size=1, max_size=3), st.randoms())
def test_a_needed_set_is_found_exactly(count, needed, random):
    items = list(range(max(count, max(needed) + 1)))
    random.shuffle(items)
    found = Search(lambda chosen: needed <= set(chosen)).run(items)
    assert set(found.items) == needed
    assert found.heals
    assert found.minimal


@given(st.sets(st.sets(st.integers(0, 6), min_size=1, max_size=3).map(frozenset), min_size=1, max_size=4))
def test_the_answer_is_one_minimal_whatever_heals(cures):
    def heals(chosen):
        return any(remedy_lines <= set(chosen) for remedy_lines in cures)

    found = Search(heals).run(list(range(7)))
    assert heals(found.items)
    assert all(not heals([x for x in found.items if x != item]) for item in found.items)
    if smallest(range(7), heals) == 1:
        assert len(found.items) == 1


def test_nothing_that_heals_is_said_so():
    found = Search(lambda _: False).run([1, 2, 3])
    assert not found.heals
    assert not found.minimal


def test_each_set_is_tried_once():
    tried = []

    def heals(chosen):
        tried.append(chosen)
        return {3, 17} <= set(chosen)

    Search(heals).run(list(range(40)))
    assert len(tried) == len(set(tried))


def test_without_time_nothing_is_claimed():
    assert not Search(lambda _: True, budget=-1.0).run([1, 2]).heals


def test_what_was_tried_stays_known_when_the_time_is_up():
    search = Search(lambda _: True, budget=0.2)
    assert search.tries((1,))
    time.sleep(0.25)
    assert search.over
    assert search.tries((1,))
    assert not search.tries((2,))
