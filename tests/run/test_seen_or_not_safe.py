"""Programs in which something is not seen, not judged or not run: none of them may be called safe."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import ampcheck
from ampcheck import check
from ampcheck.diagnose import rules
from ampcheck.run.session import Session
from ampcheck.run.wishes import wishes
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule, Settings
from ampcheck.values.verdict import Health

CE = functional.cross_entropy


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(16, 8), torch.randint(0, 4, (16,))


def train(model, optimizer, scaler, steps=6, loss=CE, before=lambda _: None):
    for number in range(steps):
        before(number)
        x, y = batch(number)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = loss(model(x).float(), y)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()


def parts(model):
    return torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", init_scale=2.0**10)


def healthy():
    model = net()
    train(model, *parts(model))


def with_a_parameter_that_nothing_uses():
    model = net()
    model.unused = nn.Linear(4, 4)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    train(model, *parts(model))


def ends_with_an_error():
    def stop(number):
        if number == 3:
            raise ValueError("no more data")

    model = net()
    try:
        train(model, *parts(model), before=stop)
    except ValueError as error:
        ended.append(error)


def every_step_is_skipped():
    model = net()
    train(model, *parts(model), steps=3, loss=lambda out, y: CE(out, y) * float("inf"))


def a_step_later_the_sparse_embedding():
    model = nn.Sequential(nn.Embedding(9, 8, sparse=True), nn.Linear(8, 4))
    optimizer, scaler = parts(model)
    for number in range(4):
        torch.manual_seed(number)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = CE(model(torch.randint(0, 9, (16,))).float(), torch.randint(0, 4, (16,)))
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.late = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x, both):
        return self.always(x) + self.late(x) if both else self.always(x)


def an_expert_that_only_an_unrecorded_step_trains():
    model = Experts()
    optimizer, scaler = parts(model)
    for number in range(8):
        x, y = batch(number)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            value = CE(model(x, number == 5).float(), y)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()


def a_part_that_another_optimizer_trains_to_nothing():
    """Two optimizers in turn: the gradients of the second are lost, those of the first are not."""
    first, second = net(), net()
    one, scaler = parts(first)
    two = torch.optim.SGD(second.parameters(), 0.01)
    for number in range(6):
        for model, optimizer, weight in ((second, two, 1e-9), (first, one, 1.0)):
            x, y = batch(number)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                value = weight * CE(model(x).float(), y)
            scaler.scale(value).backward()
            scaler.step(optimizer)
        scaler.update()


def in_fp32():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(3):
        x, y = batch(number)
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()


def by_torch_func():
    """Every gradient comes from torch.func, and no backward: what is stepped is compared all the same."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def of_one(parameters, x, y):
        with torch.autocast("cuda", torch.float16):
            return CE(torch.func.functional_call(model, parameters, (x[None],)).float(), y[None])

    gradients = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))
    for number in range(3):
        found = gradients({name: p.detach() for name, p in model.named_parameters()}, *batch(number))
        for name, parameter in model.named_parameters():
            parameter.grad = found[name].float().mean(0)
        optimizer.step()


class Eighth(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e4m3fn).float()


def in_fp8():
    model = nn.Sequential(Eighth(), net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(3):
        x, y = batch(number)
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()


ended: list[Exception] = []

PROGRAMS = {
    healthy: ({Health.SAFE}, "on a CPU in place of CUDA is safe here"),
    with_a_parameter_that_nothing_uses: ({Health.SAFE}, "is safe here"),
    ends_with_an_error: ({Health.PARTLY_AUDITED}, "the script ended with ValueError after 3 steps"),
    every_step_is_skipped: ({Health.UNKNOWN, Health.UNSAFE}, ""),
    a_step_later_the_sparse_embedding: ({Health.PARTLY_AUDITED}, "weight"),
    an_expert_that_only_an_unrecorded_step_trains: ({Health.PARTLY_AUDITED}, "late"),
    a_part_that_another_optimizer_trains_to_nothing: ({Health.UNSAFE}, "100 %"),
    in_fp32: ({Health.UNKNOWN}, "trains in FP32"),
    by_torch_func: ({Health.SAFE}, "is safe here"),
    in_fp8: ({Health.UNKNOWN}, "FP8 (float8_e4m3fn"),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_loop_is_called_what_was_seen_of_it(program):
    watching = ampcheck.watch(as_cuda=True)
    ended.clear()
    with watching:
        program()
        for error in ended:
            watching.watcher.raised(error)
    report = watching.report()
    words, told = PROGRAMS[program]
    assert report.verdict.word in words, report.verdict.sentence
    assert told in report.verdict.sentence
    assert (report.verdict.word is Health.UNSAFE) == (report.worst is Severity.ERROR)
    assert (report.precision == "fp32") == (program in {in_fp32, in_fp8})


def test_an_error_that_leaves_the_watch_is_part_of_the_verdict():
    watching = ampcheck.watch(as_cuda=True)

    def fails():
        with watching:
            healthy()
            raise RuntimeError("too late")

    with pytest.raises(RuntimeError, match="too late"):
        fails()
    assert "ended with RuntimeError after 6 steps" in watching.report().verdict.sentence


def loss(model, held):
    return CE(model(held[0]), held[1])


def test_settling_skips_are_a_warning_and_a_scale_that_was_asked_for_is_what_is_judged():
    model = net()
    skips = check(model, batch(), lambda m, b: 2.0**7 * loss(m, b))
    assert 4 <= len(skips.refused_scales) < 6
    assert skips.verdict.word is Health.RISK
    faint = check(net(), batch(), lambda m, b: 1e-6 * loss(m, b), settings=Settings(log2_scale=16))
    assert [(f.code, f.severity) for f in faint.findings] == [("AMP204", Severity.WARNING)]
    assert faint.verdict.word is Health.RISK
    lost = check(
        net(), batch(), lambda m, b: 1e-6 * loss(m, b), settings=Settings(log2_scale=0, verify=False)
    )
    assert lost.verdict.word is Health.UNSAFE
    assert lost.verdict.reasons == ("AMP201",)


class Warming(nn.Module):
    """What is multiplied by more in every step."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.register_buffer("number", torch.zeros(()))

    def forward(self, x):
        self.number += 1
        h = self.first(x) * 8.0 ** float(self.number)
        return self.last(functional.layer_norm(h.float(), h.shape[-1:]))


@pytest.mark.parametrize("verify", [True, False])
def test_every_step_is_judged(verify):
    torch.manual_seed(0)
    model = Warming()
    report = check(model, [batch()] * 7, loss, settings=Settings(steps=7, verify=verify))
    assert report.verdict.word is Health.UNSAFE
    assert report.verdict.reasons == ("AMP101",)
    assert float(model.number) == 0
    healthy = check(model, [batch()], loss, settings=Settings(verify=verify))
    assert healthy.verdict.word is Health.SAFE


def test_a_step_that_does_not_repeat_itself_is_not_called_safe():
    calls = [0]

    def wild(model, held):
        calls[0] += 1  # what no snapshot puts back: only the recorded low-precision run is off
        out = model(held[0])
        return CE(out + 3 * torch.eye(16, 4) * (calls[0] == 2), held[1])

    report = check(net(), batch(), wild, settings=Settings())
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "gives another result when it is run again" in report.verdict.sentence


class OnlyInFp32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.low = torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, None if ctx.low else (grad * x).sum(0)


def test_a_gradient_that_low_precision_does_not_have_is_named():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.gain = net(), nn.Parameter(torch.ones(8))

        def forward(self, x):
            return self.inner(OnlyInFp32.apply(x, self.gain))

    report = check(Scaled(), batch(), loss)
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert report.verdict.sentence.startswith("gain, ")
    assert dict(report.verdict.coverage.unseen) == {"gain": 8}


@pytest.mark.parametrize(
    ("source", "arguments", "precisions"),
    [
        ('Trainer(precision="16-mixed")', (), ("fp16",)),
        ('Trainer(precision="bf16-mixed")', (), ("bf16",)),
        ("TrainingArguments(fp16=True)", (), ("fp16",)),
        ('Accelerator(mixed_precision="no")', (), None),
        ("train(amp=True)", (), ("fp16", "bf16")),
        ("train(amp=False)", (), None),
        ('Trainer(precision="16-mixed" if cuda else "32")', (), None),
        ("f(fp16=True); g(bf16=True)", (), None),
        ("", ("--fp16",), ("fp16",)),
        ("", ("--mixed_precision", "bf16"), ("bf16",)),
        ("", ("amp=True",), ("fp16", "bf16")),
        ("", ("--amp", "false"), None),
        ("not python (", (), None),
        # What runs for sure, and what may not.
        ("def never(): f(fp16=True)", (), None),
        ("def main(): f(fp16=True)\nmain()", (), ("fp16",)),
        ("def main(): f(fp16=True)\nif __name__ == '__main__':\n    main()", (), ("fp16",)),
        ("def main(): f(fp16=True)\nif cuda: main()", (), None),
        ("def main(): f(fp16=True)\nglobals()[name]()", (), None),
        ("def a(): f(fp16=True)\ndef b(): a()\nb()", (), ("fp16",)),
        ("def a():\n    if x: return\n    f(fp16=True)\na()", (), None),
        ("def a():\n    for x in y:\n        if x: break\n    f(fp16=True)\na()", (), ("fp16",)),
        ("class A:\n    def __init__(self): f(fp16=True)\nA()", (), ("fp16",)),
        ("class A:\n    def go(self): self.on()\n    def on(self): f(fp16=True)\nA().go()", (), ("fp16",)),
        ("class A:\n    def go(self): f(fp16=True)\nA()", (), None),
        ("if x: f(fp16=True)\nelse: f()", (), None),
        ("x and f(fp16=True)", (), None),
        ("go = lambda: f(fp16=True)", (), None),
        ("f(fp16=True)\ndef never(): f(bf16=True)", (), None),
        ("+".join(["f()"] * 200) + "\nf(fp16=True)", (), ("fp16",)),
        ("+".join(["f()"] * 3000) + "\nf(fp16=True)", (), None),  # which Python runs and `ast` refuses
    ],
)
def test_what_a_script_asks_for_is_read(source, arguments, precisions):
    wish = wishes(source, "train.py", arguments).one()
    assert (wish.precisions if wish else None) == precisions


def test_a_function_that_training_is_within_has_run():
    source = "@decorated\ndef never():\n    f(bf16=True)\n\ndef main():\n    f(bf16=True)\nglobals()[name]()"
    asked = wishes(source, "train.py")
    assert asked.one() is None
    assert asked.one({(5, "main")}).place == "bf16=True at train.py:6"
    assert asked.one({(1, "never")}).place == "bf16=True at train.py:3"
    assert asked.one({(2, "main")}) is None


def test_what_comes_after_an_error_of_our_own_is_not_safe():
    watching = ampcheck.watch(as_cuda=True)

    def ends(_):
        if watching.watcher.steps == 4:
            raise RuntimeError("ours")

    with watching:
        watching.watcher._on_step = ends
        healthy()
    report = watching.report()
    assert watching.watcher.broken
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "after an internal error of ampcheck: RuntimeError: ours" in report.verdict.sentence


def test_a_rule_that_fails_costs_its_own_answer_only(monkeypatch):
    def broken(report):
        return [1 // len(report.low.sites[None])]

    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cuda")
        for _ in range(4):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert session.report("script.py").verdict.word is Health.SAFE
    monkeypatch.undo()  # of what lets rules fail in tests
    monkeypatch.setitem(rules.RULES, "AMP502", broken)
    report = session.report("script.py")
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "what AMP502 looks for was not judged" in report.verdict.sentence
    assert "KeyError" in report.verdict.sentence
