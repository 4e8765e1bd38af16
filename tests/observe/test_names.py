"""What tensors are called: by the variables that lead to them."""

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
