"""What tensors are called: by the variables that lead to them."""

import threading
from types import SimpleNamespace

import torch

from ampcheck.observe.script.state.naming import names_of


def test_what_is_near_is_named_however_much_there_is_beside_it():
    many = [SimpleNamespace(number=number) for number in range(150_000)]
    held = SimpleNamespace(parts=[torch.ones(1), torch.zeros(2)])
    names = names_of(held.parts)
    assert [names[id(part)] for part in held.parts] == ["held.parts.0", "held.parts.1"]
    assert len(many) == 150_000


def test_what_no_variable_leads_to_goes_by_its_shape():
    tensors = [torch.ones(3)]
    held = names_of(iter([tensors.pop()]))
    assert list(held.values()) == ["tensor of shape (3,)"]


def test_nothing_of_a_test_runner_is_looked_into(request):
    """Its session holds every test, and what these hold."""
    request.session.held_by_the_runner = [torch.ones(3)]
    try:
        names = names_of(request.session.held_by_the_runner)
        assert list(names.values()) == ["tensor of shape (3,)"]
    finally:
        del request.session.held_by_the_runner


def test_what_another_thread_changes_meanwhile_does_not_end_the_search():
    held, over = SimpleNamespace(part=torch.ones(1)), threading.Event()

    def changes():
        number = 0
        while not over.is_set():
            number += 1
            setattr(held, f"more{number % 997}", number)
            if hasattr(held, f"more{(number + 500) % 997}"):
                delattr(held, f"more{(number + 500) % 997}")

    thread = threading.Thread(target=changes)
    thread.start()
    try:
        names = [names_of([held.part])[id(held.part)] for _ in range(500)]
    finally:
        over.set()
        thread.join()
    assert set(names) == {"held.part"}
