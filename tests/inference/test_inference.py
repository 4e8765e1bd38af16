"""Forwards in half precision: what they give, what the cast ruins, and the fewest modules to keep in FP32.

The witness is torch itself: `.to(dtype)` on a copy, with the plan's modules put back by hand.
"""

import copy
import json

import pytest
import torch
from torch import nn

from ampcheck.fix.patch import SKETCH
from ampcheck.inference.optimizer_state import never_decays
from ampcheck.inference.outputs import compare, held
from ampcheck.inference.remedies import WAYS, stochastically
from ampcheck.inference.script import Forwards
from ampcheck.observe.script.roots import RootFinder
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.targets import Target
from ampcheck.targets.lossfinder import model_or_stand_in
from ampcheck.targets.spec import no_loss
from ampcheck.values.plan import Plan
from ampcheck.values.settings import Settings


class Rotary(nn.Module):
    """Angles of positions, from frequencies that a cast rounds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1e4 ** -(torch.arange(8) / 8.0), persistent=False)

    def forward(self, positions):
        return (positions[:, None].float() * self.inv_freq.float()).cos()


class Rotated(nn.Module):
    """A model that uses them, far from position 0."""

    def __init__(self):
        super().__init__()
        self.rotary, self.proj, self.head = Rotary(), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, positions):
        return self.head(self.proj(x) * self.rotary(positions).to(x.dtype))


class Stream(nn.Module):
    """A residual stream that leaves fp16's range between two blocks."""

    def __init__(self):
        super().__init__()
        self.first, self.big, self.norm, self.head = (
            nn.Linear(8, 16),
            nn.Linear(16, 16),
            nn.LayerNorm(16),
            nn.Linear(16, 4),
        )
        with torch.no_grad():
            self.big.weight.mul_(2e5)

    def forward(self, x):
        return self.head(self.norm(self.big(torch.relu(self.first(x)))))


class Timed(nn.Module):
    """A timestep that must not be cast."""

    def __init__(self):
        super().__init__()
        self.inp, self.time = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, t):
        angles = t[:, None].float() * torch.linspace(0.1, 3.0, 8)
        return self.inp(x) + self.time(angles.sin().to(self.time.weight.dtype))


def target(model, batch, **more):
    batches = batch if isinstance(batch, list) else [batch]
    return Target("model", model, batches, no_loss, infers=True, **more)


def inferred(model, batch, precision="fp16", **more):
    settings = Settings(precision=precision, mode="infer", cast="weights", **more)
    return audit(target(model, batch), settings)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def relative(low, wide):
    low, wide = low.detach().double(), wide.detach().double()
    return float((low - wide).norm() / wide.norm())


def test_a_buffer_that_the_cast_rounds_is_named_and_its_owner_kept():
    model = Rotated().eval()
    batch = {"x": torch.randn(6, 8), "positions": torch.arange(6000, 6006)}
    report = inferred(model, batch, "bf16")
    [finding] = [f for f in report.findings if f.severity == "error"]
    assert (finding.code, finding.origin.module, finding.kind) == ("AMP505", "rotary", "precision-loss")
    assert report.plan.fp32_modules == ("rotary",)
    wide = model(**batch)
    cast = copy.deepcopy(model).to(torch.bfloat16)
    low = {"x": batch["x"].bfloat16(), "positions": batch["positions"]}
    assert report.outcomes["settled"].error == pytest.approx(relative(cast(**low), wide), rel=0.05)
    assert relative(report.plan.apply(copy.deepcopy(model))(**low), wide) < 0.02
    assert report.outcomes["planned"].error == pytest.approx(
        relative(report.plan.apply(copy.deepcopy(model))(**low), wide), rel=0.2
    )


def test_the_lines_to_paste_do_what_the_plan_does():
    model, x, positions = Rotated().eval(), torch.randn(6, 8), torch.arange(6000, 6006)
    report = inferred(model, {"x": x, "positions": positions}, "bf16")
    by_hand, by_plan = copy.deepcopy(model), report.plan.apply(copy.deepcopy(model))
    assert report.patch.startswith(SKETCH)
    exec(report.patch, {"model": by_hand})
    with torch.no_grad():
        assert torch.equal(by_hand(x.bfloat16(), positions), by_plan(x.bfloat16(), positions))


def test_a_stream_beyond_the_range_needs_its_maker_left_in_fp32_or_a_module_around():
    model = nn.Sequential(nn.Linear(8, 8), Stream()).eval()
    batch = (torch.randn(4, 8),)
    report = inferred(model, batch)
    finding = report.findings[0]
    assert (finding.code, finding.origin.module, finding.origin.op) == ("AMP101", "1.big", "addmm")
    assert report.plan.outputs in {"cast-back", "promote"}
    healed = report.plan.apply(copy.deepcopy(model))(batch[0].half())
    assert relative(healed, model(*batch)) < 0.02
    assert not report.outcomes["bf16-weights"].harmed
    assert report.outcomes["fp16-autocast"].harmed  # the range is autocast's too


def test_an_input_that_must_not_be_cast_is_named_instead_of_a_module():
    model = Timed().eval()
    batch = {"x": torch.randn(4, 8), "t": torch.tensor([937.3, 801.7, 655.1, 503.9])}
    report = inferred(model, batch, "bf16")
    assert report.plan.keep_inputs == ("t",)
    assert report.plan.fp32_modules == ()
    assert report.findings[0].code == "AMP505"
    low = copy.deepcopy(model).bfloat16()
    wide = model(**batch)
    assert relative(low(batch["x"].bfloat16(), batch["t"].bfloat16()), wide) > 0.1
    assert relative(low(batch["x"].bfloat16(), batch["t"]), wide) < 0.05


def test_a_stored_value_beyond_the_range_is_told_as_that():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        model[0].weight[2] *= 3000
        model[1].running_var[2] = 2e6
    report = inferred(model, (torch.randn(16, 8),))
    assert next((f.code, f.kind, f.origin.module) for f in report.findings) == (
        "AMP105",
        "cast-overflow",
        "1",
    )
    assert report.stored[0].infinite == int(model[1].running_var.half().isinf().sum())
    assert report.plan.fp32_modules == ("1",)


def test_a_stand_in_loss_is_no_caveat_of_a_forward():
    model = nn.Linear(8, 4).eval()
    found = model_or_stand_in(model, torch.randn(2, 8))
    assert found.stand_in
    subject = target(model, torch.randn(2, 8), stand_in_loss=True, notes=found.notes)
    report = audit(subject, Settings(mode="infer"))
    assert not report.stand_in_loss
    assert not any("loss" in note for note in report.notes)


def test_a_healthy_model_is_safe_and_stays_as_it_was():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
    before = copy.deepcopy(model.state_dict())
    report = inferred(model, (torch.randn(16, 8),))
    assert not report.findings
    assert report.plan == Plan("fp16", cast="weights")
    assert model.training
    assert all(m.training for m in model.modules())
    assert all(
        torch.equal(a, b) and a.dtype == b.dtype
        for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )


def test_an_infinity_on_one_batch_in_ten_is_found():
    model = Stream().eval()
    with torch.no_grad():
        model.big.weight.div_(160)
    batches = [(torch.randn(4, 8),) for _ in range(10)]
    batches[6][0].mul_(3e3)
    report = inferred(model, batches)
    worst = report.outcomes["settled"].worst_output
    assert (worst.batch, worst.batches) == (6, 10)
    assert worst.nonfinite
    assert worst.typical < 0.01
    assert report.findings[0].origin.module == "big"


def test_weights_that_are_stored_in_half_count_as_exact():
    model = Rotated().eval().bfloat16()
    batch = {"x": torch.randn(6, 8).bfloat16(), "positions": torch.arange(6)}
    report = audit(target(model, batch), Settings(precision="bf16"))
    assert (report.mode, report.cast) == ("infer", "weights")
    assert report.outcomes["rounded"].error == 0.0
    assert model.proj.weight.dtype is torch.bfloat16


def test_a_report_of_forwards_comes_back_from_json():
    report = inferred(nn.Sequential(nn.Linear(8, 8), Stream()).eval(), (torch.randn(4, 8),))
    assert from_json(to_json(report)) == report
    saved = json.loads(to_json(report))
    assert (saved["mode"], saved["cast"]) == ("infer", "weights")
    assert Plan.from_json(report.plan.to_json()) == report.plan


def test_outputs_are_compared_by_what_they_mean():
    logits = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    other = torch.tensor([[1.0, 3.5, 3.0], [3.0, 2.0, 1.0]])
    [found] = compare({"output.logits": logits}, {"output.logits": other}, ())
    p, q = logits.double().log_softmax(-1), other.double().log_softmax(-1)
    assert found.top1 == 0.5
    assert found.kl == pytest.approx(
        float(nn.functional.kl_div(q, p, reduction="batchmean", log_target=True))
    )
    assert found.error == pytest.approx(relative(other, logits))
    assert found.cosine == pytest.approx(
        float(nn.functional.cosine_similarity(logits.flatten(), other.flatten(), dim=0)), rel=1e-6
    )
    picture = torch.rand(1, 3, 8, 8)
    noisy = picture + 0.01
    [image] = compare({"output": picture}, {"output": noisy}, ())
    span = float(picture.max() - picture.min())
    mse = float((noisy.double() - picture.double()).square().mean())
    assert image.psnr == pytest.approx(float(10 * torch.log10(torch.tensor(span**2 / mse))), rel=1e-4)
    [tokens] = compare({"output": torch.tensor([[4, 5, 6, 7]])}, {"output": torch.tensor([[4, 5, 9, 7]])}, ())
    assert (tokens.error, tokens.diverged) == (0.25, 2)
    [shorter] = compare({"output": torch.tensor([[4, 5, 6, 7]])}, {"output": torch.tensor([[4, 5]])}, ())
    assert (shorter.error, shorter.diverged) == (0.5, 2)
    assert held({"a": logits})["output.a"] is not logits


def test_an_average_that_stands_still_is_found_and_its_module_kept():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            if self.training:
                self.mean.mul_(0.998).add_(x.detach().mean(0) + 2.0, alpha=0.002)
            return self.fc(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.average, self.out = Average(), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(self.average(x))

    subject = Target(
        "model",
        Net(),
        [torch.randn(16, 8)],
        lambda model, batch: model(batch).square().mean(),
        lambda model: torch.optim.SGD(model.out.parameters(), lr=0.1),
        steps=600,
    )
    report = audit(subject, Settings(precision="bf16", mode="train", cast="weights"))
    lost = [f for f in report.findings if f.code == "AMP504"]
    assert lost[0].origin.module == "average"
    assert "average" in report.plan.fp32_modules


def test_a_scaler_refuses_half_gradients():
    subject = Target(
        "model",
        nn.Linear(8, 2),
        [torch.randn(16, 8)],
        lambda model, batch: model(batch).square().mean(),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        scaled=True,
    )
    report = audit(subject, Settings(precision="fp16", mode="train", cast="weights"))
    assert report.findings[0].code == "AMP301"
    assert "unscale FP16 gradients" in report.findings[0].message
    assert report.plan.cast == "autocast"


def test_the_models_that_a_script_calls_are_audited_each_for_itself():
    forwards, roots = Forwards(), RootFinder(lambda *_: None, WatchedThread())
    roots.without_gradients = forwards.note
    roots.listen()
    try:
        first, second = Stream().eval().half(), nn.Linear(4, 4).eval()
        with torch.no_grad():
            for _ in range(9):
                second(second(torch.randn(2, 4)))
            first(x=torch.randn(4, 8).half())
        nn.Linear(2, 2)(torch.randn(1, 2)).sum().backward()
    finally:
        roots.stop_listening()
    (plain, as_half), (stream, as_weights) = forwards.targets("generate.py")
    assert (len(plain.batches), len(stream.batches)) == (6, 1)
    assert as_half.cast == as_weights.cast == "weights"
    report = audit(stream, as_weights)
    assert report.findings[0].code == "AMP101"
    assert report.plan.fp32_modules
    assert not audit(plain, as_half).findings
    assert first.big.weight.dtype is torch.float16


def test_an_iterated_program_tells_how_the_error_grows():
    class Sampler(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Linear(8, 8, bias=False)
            with torch.no_grad():
                self.step.weight.copy_(1.6 * torch.eye(8) + 0.05 * torch.randn(8, 8))

        def forward(self, x):
            for _ in range(10):
                x = (self.step(x) * 3).sin()
            return x

    report = inferred(Sampler().eval(), (torch.rand(4, 8),))
    [told] = [note for note in report.notes if note.startswith("step is called 10 times")]
    assert "the error grows with the state" in told
    steady = inferred(nn.ModuleDict({"a": nn.Linear(8, 8)})["a"].eval(), (torch.rand(4, 8),))
    assert not any("is called" in note for note in steady.notes)


class Coarse(nn.Module):
    """Loses in half precision what it is given: a number that is added and taken away again."""

    def forward(self, x):
        return (x + 300.0) - 300.0


class Decoder(nn.Module):
    """One step of a program that carries a state; `coarse` says where the state is spoilt."""

    def __init__(self, gain):
        super().__init__()
        self.mix, self.coarse, self.out = nn.Linear(8, 8, bias=False), Coarse(), nn.Linear(8, 8, bias=False)
        with torch.no_grad():
            self.mix.weight.copy_(torch.eye(8))
            self.out.weight.copy_(gain * torch.eye(8))

    def forward(self, x):
        return self.out(self.coarse(self.mix(x))).sin()


class Loop(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.step = Decoder(gain)

    def forward(self, x):
        for _ in range(6):
            x = self.step(x)
        return x


def test_the_module_by_which_an_error_enters_an_iteration_is_named():
    report = inferred(Loop(2.5).eval(), (torch.rand(4, 8),), "bf16")
    [note] = [note for note in report.notes if note.startswith("step is called 6 times")]
    assert "in call 1 it enters at sub in step.coarse, in call 6 with its input" in note
    steady = inferred(Loop(0.2).eval(), (torch.rand(4, 8),), "bf16")
    [note] = [note for note in steady.notes if note.startswith("step is called 6 times")]
    assert "the error does not grow" in note


def test_decoding_with_a_cache_is_compared_up_to_the_first_other_token():
    """Witness: the same loop on a model cast by hand."""

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix, self.lm_head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)
            with torch.no_grad():
                self.lm_head.weight.mul_(3e-3)
                self.lm_head.bias.zero_()

        def forward(self, token, cache):
            cache = cache + self.mix(self.embed(token))
            return self.lm_head(cache.sin()), cache

    def generate(model, batch):
        token, cache, tokens = batch["token"], batch["cache"], []
        for _ in range(24):
            logits, cache = model(token, cache)
            token = logits.argmax(-1)
            tokens.append(token)
        return torch.stack(tokens, -1)

    model = Cached().eval()
    batch = {"token": torch.arange(8), "cache": 300 * torch.rand(8, 16)}
    report = audit(
        target(model, batch, predict=generate), Settings(precision="bf16", mode="infer", cast="weights")
    )
    with torch.no_grad():
        wide = generate(model, batch)
        low = generate(copy.deepcopy(model).bfloat16(), {**batch, "cache": batch["cache"].bfloat16()})
    found = report.outcomes["settled"].worst_output
    differ = (wide != low).any(0)
    assert found.diverged == int(differ.int().argmax())
    assert found.error == pytest.approx(float((wide != low).double().mean()), abs=0.02)
    assert any(note.startswith("the model is called 24 times") for note in report.notes)


def test_updates_that_half_weights_lose_are_brought_back_by_the_remedies():
    torch.manual_seed(1)
    subject = Target(
        "model",
        nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)),
        [torch.randn(32, 16)],
        lambda model, batch: model(batch).float().square().mean(),
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-5),
        steps=30,
    )
    report = audit(subject, Settings(precision="bf16", mode="train", cast="weights"))
    assert any(finding.code == "AMP504" for finding in report.findings)
    tried = {claim.claim.rpartition(" by ")[2]: str(claim.tried) for claim in report.claims}
    assert {tried[way] for way in WAYS} == {"confirmed"}
    assert report.plan.cast == "autocast"
    assert any("second moments held in bfloat16 can only grow" in text for text in report.advice)


def test_second_moments_in_bf16_never_decay_and_in_fp16_they_do():
    """The law behind the sentence, in torch's own arithmetic."""
    held = torch.linspace(1.0, 2.0, 129)[:-1]  # every mantissa of bf16
    assert torch.equal(held.bfloat16().mul(0.999), held.bfloat16())
    assert bool((held.half().mul(0.999) < held.half()).all())
    for dtype, grows in (torch.bfloat16, True), (torch.float16, False), (torch.float32, False):
        optimizer = torch.optim.Adam([torch.zeros(4, dtype=dtype, requires_grad=True)])
        assert bool(never_decays(optimizer, dtype)) == grows


def test_moments_and_eps_that_are_zero_in_fp16_are_named_and_a_larger_eps_is_tried():
    subject = Target(
        "model",
        nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)),
        [torch.randn(32, 16)],
        lambda model, batch: 1e-3 * model(batch).float().square().mean(),
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        steps=5,
    )
    report = audit(subject, Settings(precision="fp16", mode="train", cast="weights"))
    assert float(torch.tensor(1e-8).half()) == 0.0
    assert any("eps of 1e-08 is zero in fp16" in text for text in report.advice)
    [moment] = [text for text in report.advice if text.startswith("exp_avg_sq")]
    grads = torch.autograd.grad(
        subject.loss(subject.model.float(), subject.batch(0)), list(subject.model.parameters())
    )
    zero = sum(int(((1e-3 * g.square()).half() == 0).sum()) for g in grads) / sum(g.numel() for g in grads)
    assert zero > 0.9
    assert "of 4 parameters is held in fp16" in moment
    tried = {claim.claim: str(claim.tried) for claim in report.claims}
    assert "train half weights with an eps of 0.0001" in tried
    assert tried["update half weights by FP32 master weights"] == "confirmed"


def test_a_parameter_group_in_fp32_is_tried_where_only_its_updates_are_lost():
    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.slow, self.fast = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), nn.Linear(16, 4)

        def forward(self, x):
            return self.fast(torch.tanh(self.slow(x)))

    def optimizer(model):
        groups = [
            {"params": model.fast.parameters(), "lr": 1e-2},
            {"params": model.slow.parameters(), "lr": 1e-6},
        ]
        return torch.optim.Adam(groups)

    subject = Target(
        "model",
        Slow(),
        [torch.randn(32, 16)],
        lambda model, batch: model(batch).float().square().mean(),
        optimizer,
        steps=10,
    )
    report = audit(subject, Settings(precision="bf16", mode="train", cast="weights"))
    [claim] = [claim for claim in report.claims if "of the optimizer in FP32" in claim.claim]
    assert claim.claim == "keep group 1 of the optimizer in FP32: slow.0, slow.1"
    assert claim.tried == "confirmed"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stochastic_rounding_keeps_the_mean(dtype):
    wide = torch.tensor([1.0 + 0.3 * torch.finfo(dtype).eps, -3.7, 0.0, 1.0]).repeat(20000, 1)
    rounded = stochastically(wide, dtype, torch.Generator().manual_seed(0)).float()
    assert torch.allclose(rounded.mean(0), wide[0], rtol=1e-2 * torch.finfo(dtype).eps, atol=0)
    both = torch.stack([wide[0].to(dtype).float(), rounded.amax(0), rounded.amin(0)])
    assert bool(((both - wide[0]).abs() <= torch.finfo(dtype).eps * wide[0].abs() * 2).all())
