"""Several optimizers that step in turn, retained forwards and scalers of all kinds: seen, or said to be unknown."""

import threading

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.observe.execution import run_op
from ampcheck.observe.recorder import FORWARD_UNSEEN, Recorder
from ampcheck.observe.script.journal import Journal
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.loop import Kind
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health


def pair():
    torch.manual_seed(0)
    g, d = nn.Linear(4, 8), nn.Linear(8, 1)
    return g, d, torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)


def adversarial(weight=1.0, critics=1, steps=3, watched=None, scale=2.0**10):
    """Train a generator whose forward runs before the critic's step and whose backward runs after it."""
    g, d, og, od = pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    watch = ampcheck.watch(first=steps) if watched is None else watched
    with watch as seen:
        for step in range(steps):
            torch.manual_seed(step)
            with torch.autocast("cpu", torch.float16):
                fake = g(torch.randn(16, 4))
            for _ in range(critics):
                od.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = d(fake.detach()).float().square().mean()
                scaler.scale(loss).backward()
                scaler.step(od)
                scaler.update()
            with torch.autocast("cpu", torch.float16):
                loss = d(fake).float().square().mean() * weight
            og.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(og)
            scaler.update()
    return seen, (*g.parameters(), *d.parameters())


def gradients(report):
    """Return by parameter the share of its gradient that is zero."""
    states = [(s, v) for s, v in report.low.sites.items() if s.slot.startswith("param_grad[")]
    return {f"{site.module}.{site.slot[11:-1]}": stats.zeros / stats.numel for site, stats in states}


@pytest.mark.parametrize("critics", [1, 3])
def test_a_forward_that_another_optimizers_step_parts_from_its_backward_is_joined_to_it(critics):
    report = adversarial(critics=critics)[0].report()
    assert {"g.weight", "g.bias", "d.weight", "d.bias"} <= gradients(report).keys()
    assert FORWARD_UNSEEN not in report.not_audited
    modules = {site.module for site in report.low.sites if site.phase is Phase.BACKWARD}
    assert {"g", "d"} <= modules


@pytest.mark.parametrize(("critics", "scale"), [(1, 2.0**18), (2, 2.0**20), (2, 2.0**22), (3, 2.0**22)])
def test_a_turn_that_overflowed_is_followed_by_another_look(critics, scale):
    session = Session(Schedule())
    adversarial(critics=critics, steps=20, watched=session.watching(), scale=scale)
    report = session.report("script.py")
    assert report.loop.skipped
    assert report.outcomes["settled"].finite
    assert report.worst is not Severity.ERROR


def test_a_generator_that_learns_nothing_is_no_safe_step():
    seen, (weight, bias, *critic) = adversarial(weight=1e-12)
    assert not weight.grad.any()
    assert not bias.grad.any()
    assert all(parameter.grad.any() for parameter in critic)
    report = seen.report()
    assert gradients(report)["g.weight"] == 1.0
    assert report.outcomes["settled"].harmed
    assert report.verdict.word is Health.UNSAFE
    errors = {finding.code: finding for finding in report.findings if finding.severity is Severity.ERROR}
    assert errors["AMP201"].origin.module == "g"


def test_recording_over_several_turns_changes_nothing():
    class Nothing:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    _, bare = adversarial(critics=2, watched=Nothing())
    _, seen = adversarial(critics=2)
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True))


def test_a_graph_from_an_earlier_step_is_said_to_be_unseen():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    kept = None
    with ampcheck.watch(steps={1}) as seen:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(torch.randn(2, 4)).float().sum()
            loss = out if kept is None else out + kept
            loss.backward(retain_graph=True)
            optimizer.step()
            kept = out if kept is None else kept
    assert seen.report().not_audited[FORWARD_UNSEEN] > 0


class Tower(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.lin, self.act = nn.Linear(8, 8), act

    def forward(self, x):
        return self.act(self.lin(x))


class TwoTowers(nn.Module):
    """One tower runs in a thread: its nodes bear the numbers of the other's."""

    def __init__(self):
        super().__init__()
        self.side, self.main = Tower(torch.tanh), Tower(torch.sigmoid)

    def forward(self, x):
        import threading

        out = {}
        thread = threading.Thread(target=lambda: out.setdefault("side", self.side(x)))
        thread.start()
        thread.join()
        return self.main(x) * out["side"]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_gradient_is_never_attributed_to_another_threads_line(compiled):
    model = TwoTowers()
    recorder = Recorder(model, compiled=compiled, execute=run_op)
    with recorder:
        model(torch.randn(4, 8)).sum().backward()
    trace = recorder.trace(recorder.fetch())
    placed = {site.op: site.module for site in trace.sites if site.phase is Phase.BACKWARD and site.op}
    assert placed["tanh_backward"] in {"side", ""}
    assert placed["sigmoid_backward"] in {"main", ""}
    assert trace.not_audited["operations in threads of the model's own"] > 0


def by_hand(scale, divide):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with ampcheck.watch(model, name="m") as seen:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = model(torch.randn(4, 8))
            (out.float().square().mean() * 1e-3 * scale).backward()
            divide(model, scale, optimizer)
    return seen.report()


def in_place(model, scale, optimizer):
    for parameter in model.parameters():
        parameter.grad.div_(scale)
    optimizer.step()


def not_at_all(_model, _scale, optimizer):
    optimizer.step()


@torch.no_grad()
def elsewhere(model, scale, _optimizer):
    for parameter in model.parameters():
        parameter.sub_(parameter.grad / scale * 0.01)


def test_a_scale_that_is_applied_by_hand_is_known_by_what_it_does_to_the_gradients():
    report = by_hand(2.0**14, in_place)
    assert report.log2_scale == 14
    assert set(report.loop.first_scales.values()) == {2.0**14}
    assert report.loop.scaling == ""
    unscaled = by_hand(1.0, in_place)
    site = next(k for k in report.reference.sites if k.slot == "param_grad[weight]")
    assert report.reference.sites[site].amax == pytest.approx(unscaled.reference.sites[site].amax, rel=1e-2)


def test_a_weight_of_the_loss_is_no_scale():
    report = by_hand(64.0, not_at_all)
    assert (report.log2_scale, report.loop.scaling, dict(report.loop.first_scales)) == (0, "", {})


def test_a_scale_whose_division_is_not_seen_is_unknown():
    report = by_hand(2.0**14, elsewhere)
    assert "2^14" in report.loop.scaling
    assert any(note.startswith("loss scaling unknown") for note in report.notes)


def test_losses_are_compared_at_one_scale():
    model = nn.Linear(8, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu")
    with ampcheck.watch(model) as seen:
        for _ in range(2):
            for _ in range(2):
                with torch.autocast("cpu", torch.float16):
                    out = model(torch.randn(4, 8))
                scaler.scale(out.float().square().mean() / 2).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    report = seen.report()
    assert max(pair.relative_rms for pair in report.errors.values()) < 0.05


def test_names_of_backward_that_were_bound_before_the_watch_are_heard():
    from torch.autograd import backward, grad

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ampcheck.watch(model) as seen:
        for step in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(2, 4)).float().sum()
            if step % 2:
                for parameter, found in zip(
                    model.parameters(), grad(loss, list(model.parameters())), strict=True
                ):
                    parameter.grad = found
            else:
                backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert gradients(seen.report())
    assert seen.report().loop.count(Kind.BACKWARD) == 4


def test_a_checkpoint_that_runs_the_forward_without_gradients_begins_a_recording():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    block, head = nn.Linear(8, 8), nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], 0.1)
    with ampcheck.watch() as seen:
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, 8, requires_grad=True)
            with torch.autocast("cpu", torch.float16):
                out = head(checkpoint(lambda v: block(v) * 1e6, x, use_reentrant=True))
            out.float().sum().backward()
            optimizer.step()
    report = seen.report()
    assert "block.weight" in gradients(report)
    assert any(finding.code == "AMP101" for finding in report.findings)


def test_a_method_that_began_unheard_may_end():
    """A watch that follows a script into another thread may hear the end of what it has not heard begin."""
    journal = Journal()
    journal.leave()
    journal.enter("optimizer 1")
    assert journal.inside == "optimizer 1"
    journal.leave()
    assert not journal.inside


def test_a_watch_follows_a_script_into_one_thread_and_stays_there():
    watched, heard = WatchedThread(), []
    watched.follows = True

    def trains():
        heard.append([watched.elsewhere("step_begins", idle=True) for _ in range(3)])

    for _ in range(2):
        thread = threading.Thread(target=trains)
        thread.start()
        thread.join()
        held = watched.ident
        watched.ident = -1  # another thread may have the number of one that has ended
    assert heard == [[True, False, False], [True, True, True]]
    assert held


def test_what_is_said_once_outlasts_a_round_that_began_unheard():
    journal = Journal()
    journal.note(Kind.BACKWARD)
    journal.joins()
    journal.note(Kind.SENT_GRAD, name="zero net.py:7")
    journal.updated()
    journal.turn()
    journal.note(Kind.BACKWARD)
    journal.note(Kind.STEP)
    journal.turn()
    rounds, _ = journal.rounds()
    assert [[event.kind for event in one] for one in rounds] == [[Kind.SENT_GRAD, Kind.BACKWARD, Kind.STEP]]
