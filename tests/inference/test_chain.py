"""Calls that go on from each other's results: kept as they follow each other, and run again in FP32.

The witness is the same loop in plain torch, in FP32 and in half precision.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ampcheck.inference.casting import Way
from ampcheck.inference.chain import Call
from ampcheck.inference.lab import Subject
from ampcheck.inference.rerun import CHAINED, Rerun, runs_again
from ampcheck.inference.script import Forwards
from ampcheck.observe.script.roots import RootFinder
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.run.audit import audit

STEPS, STEP = 64, 0.0045


class Flow(nn.Module):
    """A velocity, small beside what it is added to."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(9, 32), nn.Linear(32, 8)

    def forward(self, x, t):
        t = t.to(x.dtype).expand(len(x), 1)
        return x / x.norm() * 120 + self.b(torch.tanh(self.a(torch.cat([x / 100, t], 1))))


def sample(model, x, steps=STEPS):
    states = []
    for at in range(steps):
        x = x + model(x, torch.tensor([at / steps])) * STEP
        states.append(x)
    return states


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def watched(script):
    """Run a script under the watch of forwards; return the watch and what the script gives."""
    forwards, roots = Forwards(), RootFinder(lambda *_: None, WatchedThread())
    forwards.follow(roots)
    roots.listen()
    try:
        with torch.no_grad():
            given = script()
    finally:
        roots.stop_listening()
        forwards.close()
    return forwards, given


def relative(low, wide):
    low, wide = low.detach().double(), wide.detach().double()
    return float((low - wide).norm() / wide.norm())


def test_a_state_that_loses_its_updates_is_found_and_carrying_it_in_fp32_heals():
    model, x = Flow().eval().bfloat16(), (100 * torch.randn(1, 8)).bfloat16()
    forwards, given = watched(lambda: sample(model, x))
    [(target, settings)] = forwards.targets("generate.py")
    assert f"batch 1 is the {STEPS} calls in a row" in " ".join(target.notes)
    report = audit(target, settings)
    with torch.no_grad():
        wide = sample(copy.deepcopy(model).float(), x.float())
        kept = [x.float()]
        for at in range(STEPS - 1):
            step = model(kept[-1].bfloat16(), torch.tensor([at / STEPS])).float() * STEP
            kept.append(kept[-1] + step)
    worst = report.outcomes["settled"].worst_output
    assert worst.name == f"output.state at call {STEPS}"
    assert worst.error == pytest.approx(relative(given[-2], wide[-2]), rel=0.05)
    assert report.plan.keep_state
    assert not report.plan.fp32_modules
    assert report.outcomes["planned"].error < 0.05
    assert relative(kept[-1], wide[-2]) < 0.05
    assert worst.error > 0.07
    [claim] = report.claims
    assert (claim.claim, claim.tried) == ("carry what goes from call to call in FP32", "confirmed")
    assert "state = state.float()" in report.patch
    [grows] = [note for note in report.notes if note.startswith("what is carried from call to call")]
    assert f"at call {STEPS}" in grows
    [enters] = [note for note in report.notes if note.startswith("the model is called")]
    assert "the error" in enters


class Cache:
    """What a decoder has seen, in an object that it fills itself."""

    def __init__(self):
        self.keys = []


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)

    def forward(self, tokens, cache=None):
        cache = Cache() if cache is None else cache
        cache.keys.append(self.mix(self.embed(tokens)).cumsum(-1))
        seen = torch.stack(cache.keys).sum(0)
        return {"logits": self.head(seen.sin()), "cache": cache}


def decode(model, tokens, written):
    cache = None
    for at in range(10):
        out = model(tokens, cache=cache)
        cache = out["cache"]
        tokens = out["logits"].argmax(-1)
        written[:, at] = tokens  # into memory that was there before
    return written


def test_decoding_with_a_cache_is_run_again_token_by_token():
    model, start = Decoder().eval().half(), torch.arange(6)
    forwards, written = watched(lambda: decode(model, start, torch.zeros(6, 10, dtype=torch.long)))
    [called] = forwards.models.values()
    chain = called.chain
    assert (chain.calls, chain.carried) == (10, True)
    subject = Subject(
        model, [{CHAINED: True, "args": (start,), "kwargs": {"cache": None}}], Rerun(chain, low=True)
    )
    assert runs_again(subject.predict, subject, Way(torch.float16, weights=True))
    found = subject.predict.run(model, subject.batches[0], Way(torch.float16, weights=True))
    tokens = [found[f"state at call {number}"] for number in range(2, 11)]
    assert torch.equal(torch.stack(tokens, -1), written[:, :9])
    with torch.no_grad():
        exact = decode(copy.deepcopy(model).float(), start, torch.zeros(6, 10, dtype=torch.long))
    wide = subject.predict.run(copy.deepcopy(model).float(), subject.batches[0], Way())
    assert torch.equal(torch.stack([wide[f"state at call {n}"] for n in range(2, 11)], -1), exact[:, :9])
    assert len(chain.begun[1]) == 1
    assert found["call 10"]["logits"].dtype is torch.float16
    assert wide["call 10"]["logits"].dtype is torch.float32


def test_calls_that_have_nothing_to_do_with_each_other_are_no_chain():
    model = nn.Linear(4, 4).eval().half()
    forwards, _ = watched(lambda: [model(torch.randn(2, 4).half()) for _ in range(6)])
    [(target, _)] = forwards.targets("classify.py")
    assert not any("in a row" in note for note in target.notes)
    assert len(target.batches) == 4


def test_a_state_that_goes_by_numpy_is_not_said_to_be_followed():
    model = nn.Linear(4, 4).eval()

    def script():
        x = torch.randn(2, 4)
        for _ in range(6):
            y = np.tanh(model(x).numpy())
            x = torch.from_numpy(y) + 1.0
        return x

    forwards, _ = watched(script)
    [(target, _)] = forwards.targets("generate.py")
    assert not any("in a row" in note for note in target.notes)


def test_noise_that_a_script_draws_is_drawn_once():
    model = Flow().eval().half()

    def script():
        x = (100 * torch.randn(1, 8)).half()
        for at in range(5):
            x = x + model(x, torch.tensor([at / 5])) * STEP
            x = x + torch.randn_like(x)
            x.add_(torch.empty_like(x).normal_())
        return x

    forwards, _ = watched(script)
    [called] = forwards.models.values()
    args, kwargs = called.chain.begun
    subject = Subject(model, [{CHAINED: True, "args": args, "kwargs": kwargs}], Rerun(called.chain, low=True))
    assert runs_again(subject.predict, subject, Way(torch.float16, weights=True))


def test_a_script_computes_what_it_computes_alone_beside_modes_of_its_own():
    def script():
        torch.manual_seed(1)
        model = Flow().eval().half()
        x, counts = (100 * torch.randn(1, 8)).half(), []
        for at in range(20):
            with FlopCounterMode(display=False) as counter:
                v = model(x, torch.tensor([at / 20]))
                x = x + v * STEP
                x.mul_(torch.rand_like(x).round() * 0.001 + 1)
            counts.append(counter.get_total_flops())
        return x, counts, torch.rand(1)

    with torch.no_grad():
        alone = script()
    forwards, given = watched(script)
    assert torch.equal(given[0], alone[0])
    assert given[1] == alone[1]
    assert torch.equal(given[2], alone[2])
    assert forwards.failed == 0
    assert next(iter(forwards.models.values())).chain.calls == 20
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_a_training_in_between_ends_it():
    model = nn.Linear(4, 4)

    def script():
        x = torch.randn(2, 4)
        x = model(model(x))
        with torch.enable_grad():
            model(x).sum().backward()
        for _ in range(4):
            x = model(x)
        return x

    forwards, _ = watched(script)
    chain = next(iter(forwards.models.values())).chain
    assert chain.calls == 2
    assert chain.ended
    assert len([event for event in chain.events if isinstance(event, Call)]) == 2


def test_transformers_own_loop_is_audited_with_its_cache_as_it_was():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=99, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config).eval().bfloat16()
    tokens, more = torch.arange(8).reshape(2, 4), {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    forwards, _ = watched(lambda: model.generate(tokens, **more))
    [(target, settings)] = forwards.targets("generate.py")
    assert "batch 1 is the 6 calls in a row" in " ".join(target.notes)
    report = audit(target, settings)
    assert not any(outcome.raised for outcome in report.outcomes.values())
    assert not report.findings
