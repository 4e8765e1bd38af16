"""Modules are known by all their names, whatever they override, and nested values by their slots."""

from collections import UserDict, deque
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.model.structure import named_modules, named_parameters, roots
from ampcheck.observe.recorder import Recorder

T = torch.zeros(1)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Box:
    inside: Any


@pytest.mark.parametrize(
    ("value", "slots"),
    [
        (T, ["output"]),
        ([T, (T, None)], ["output[0]", "output[1][0]"]),
        ({"a": {"b": T}}, ["output.a.b"]),
        (UserDict(x=T), ["output.x"]),
        (Pair(T, [T]), ["output.left", "output.right[0]"]),
        (Box([T]), ["output.inside[0]"]),
        (deque([T]), ["output[0]"]),
        (Box, []),
        ("text", []),
        (None, []),
        (range(3), []),
    ],
)
def test_tensors_are_found_in_nested_values(value, slots):
    assert [slot for slot, _ in tensors_in(value, "output")] == slots


def test_a_list_that_holds_itself_ends():
    loop: list[Any] = [T]
    loop.append(loop)
    assert len(list(tensors_in(loop, "x"))) < 10


def test_a_data_set_is_not_read():
    class Lazy(list):
        pass

    class Data:
        def __len__(self):
            return 3

        def __getitem__(self, at):
            raise AssertionError("read")

    assert list(tensors_in(Data(), "x")) == []


def test_names_of_a_plain_model_are_torchs_own():
    model = nn.TransformerEncoderLayer(8, 2)
    assert [name for name, _ in named_modules(model)] == [name for name, _ in model.named_modules()]
    ours = {f"{path}.{name}".lstrip("."): p for path, name, p in named_parameters(model)}
    assert {name: id(p) for name, p in ours.items()} == {name: id(p) for name, p in model.named_parameters()}
    assert list(ours) == [name for name, _ in model.named_parameters()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what the compiler loads warns of itself
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, torch.compile, lambda m: torch.compile(nn.DataParallel(m))]
)
def test_wrappers_leave_no_trace_in_names(wrap):
    model = nn.Sequential(nn.Linear(2, 2), wrap(nn.Sequential(nn.Linear(2, 2))))
    assert [name for name, _ in named_modules(wrap(model))] == ["", "0", "1", "1.0"]


def test_a_module_that_holds_itself_is_one_module():
    model = nn.Linear(2, 2)
    model.child = nn.Sequential(model)
    assert [name for name, _ in named_modules(model)] == ["", "child"]


NET = nn.Linear(2, 2)


def through_a_global(x: torch.Tensor) -> torch.Tensor:
    return NET(x)


class Holder:
    def __init__(self) -> None:
        self.net, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (NET, [""]),
        (NET.forward, [""]),
        (lambda x: NET(x) + 1, [""]),
        (through_a_global, [""]),
        (partial(through_a_global), [""]),
        (Holder(), ["net", "head"]),
        (Holder().run, ["net", "head"]),
        (torch.sin, []),
    ],
)
def test_modules_are_found_behind_callables(model, names):
    assert list(roots(model)) == names


def test_an_exception_inside_does_not_move_later_operations():
    class Fragile(nn.Module):
        def forward(self, x):
            raise ValueError

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = nn.Sequential(nn.Sequential(Fragile()))

        def forward(self, x):
            try:
                return self.deep(x)
            except ValueError:
                return x * 2

    model = Model()
    with Recorder(model) as recorder:
        model(torch.ones(2))
    trace = recorder.trace(recorder.fetch())
    assert {site.module for site in trace.sites if site.op == "mul"} == {""}
    assert [module.path for module in trace.modules] == ["", "deep", "deep.0", "deep.0.0"]


def test_a_module_is_listed_with_what_it_owns():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).half())
    with Recorder(model) as recorder:
        model[0](torch.ones(1, 3))
        model[0](torch.ones(1, 3))
    whole, info = recorder.trace(recorder.fetch()).modules
    assert (whole.path, whole.kind, whole.calls) == ("", "Sequential", 0)  # its parts ran without it
    assert (info.path, info.kind, info.calls, info.parameters, info.dtypes) == (
        "0",
        "Linear",
        2,
        8,
        ("float32",),
    )
