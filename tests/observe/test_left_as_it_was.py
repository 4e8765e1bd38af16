"""What a model does to itself at its first forward is undone, and to show a report changes nothing."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrizations
from witness import module_hooks_of, random_bits, seed

import ampcheck


class Lazy(nn.Module):
    """Does at its first forward whatever a model may do to itself, to its class and to all modules."""

    calls, shapes, memo = 0, [], {}

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.gone = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(1, 1)
        self.swapped, self.ready = nn.Identity(), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Lazy.calls += 1
        self.shapes.append(x.shape)
        self.memo["x"] = self.memo.get("x", 0) + 1
        if not self.ready:
            self.ready, self.swapped, self.more = True, nn.Linear(8, 8), nn.Linear(2, 2)
            self.change()
        return self.more(self.b(self.swapped(self.a(x))))

    def change(self) -> None:
        del self.gone
        self.register_buffer("late", torch.zeros(1))
        self.a.register_forward_pre_hook(lambda _, given: (given[0] + 1,))
        self.a.register_forward_hook(lambda _, __, out: out * 2)
        self.a.weight.register_hook(lambda grad: grad * 3)
        self.b.register_full_backward_pre_hook(lambda _, grad: (grad[0] * 2,))
        self.b.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(2))
        self.b.register_state_dict_post_hook(lambda *_: None)
        self.a.forward = partial(twice, self.a.forward)
        parametrizations.weight_norm(self.b)
        Lazy.extra = 1
        module_hooks.register_module_forward_hook(lambda *_: None)


def twice(forward: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * forward(x)


HOOKS = "_forward_pre_hooks _forward_hooks _backward_pre_hooks _backward_hooks _state_dict_hooks".split()


def found(model: nn.Module) -> list[Any]:
    """Return what can be seen of a model, its class, and what is there for all modules."""
    modules = [
        (name, sorted(vars(module)), *(len(getattr(module, kind)) for kind in HOOKS))
        for name, module in model.named_modules()
    ]
    hooks = "_backward_hooks", "_post_accumulate_grad_hooks"
    parameters = [
        (name, [len(getattr(parameter, kind) or {}) for kind in hooks])
        for name, parameter in model.named_parameters()
    ]
    shared = Lazy.calls, list(Lazy.shapes), dict(Lazy.memo), hasattr(Lazy, "extra")
    return [
        str(model), sorted(model.state_dict()), modules, parameters, shared, len(module_hooks._global_forward_hooks)
    ]  # fmt: skip


def test_what_a_model_does_to_itself_at_its_first_forward_is_undone():
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def trained(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        value = loss(model, batch)
        value.backward()
        return [value.detach(), *(parameter.grad for parameter in model.parameters())]

    seed()
    batch, model = (torch.randn(4, 8), torch.tensor([0, 1, 0, 1])), Lazy()
    alone, before = copy.deepcopy(model), found(model)
    ampcheck.check(model, batch, loss)
    assert found(model) == before
    try:
        audited, expected = trained(model), trained(alone)
        assert len(audited) == len(expected) == 10
        assert all(map(torch.equal, audited, expected))
    finally:
        module_hooks._global_forward_hooks.clear()
        del Lazy.extra


def test_hooks_that_transformers_sets_at_the_first_forward_are_taken_away():
    """Those that gather hidden states: set once a model, they gather nothing in a model that finds them there."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)

    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        hidden = model(ids, output_hidden_states=True).hidden_states
        assert len(hidden) == 4
        logits = [model.lm_head(one)[:, :-1].flatten(0, 1) for one in hidden[1:]]
        return sum(F.cross_entropy(one, ids[:, 1:].flatten()) for one in logits)

    def value(model: nn.Module) -> torch.Tensor:
        return loss(model, ids).detach()

    seed()
    model, ids = LlamaForCausalLM(config), torch.randint(0, 50, (2, 8))
    alone, before = copy.deepcopy(model), (found(model), module_hooks_of(model))
    ampcheck.check(model, ids, loss)
    assert (found(model), module_hooks_of(model)) == before
    expected = value(alone)
    assert module_hooks_of(alone) != before[1]  # it does set some
    assert value(model).equal(expected)
    ampcheck.check(model, ids, loss)
    assert module_hooks_of(model) == module_hooks_of(alone)
    assert value(model).equal(expected)


def test_to_show_and_to_save_a_report_draws_no_random_number(tmp_path):
    report = ampcheck.check(nn.Linear(4, 4), torch.randn(2, 4), lambda model, x: model(x).square().mean())
    before = random_bits()
    assert str(report)
    assert report._repr_html_()
    for name in "r.html r.json r.md r.sarif r.xml".split():
        report.save(tmp_path / name)
    assert random_bits() == before
