"""CUDA graphs: on a CPU what they captured runs again, eagerly; what runs in one is never called safe."""

import torch
from torch import nn

import ampcheck
from ampcheck.observe.script.watcher import GRAPHS
from ampcheck.values.verdict import Health


def batches(steps=5):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


class Training:
    """A net with a state and random draws of its own, trained in half precision on a device that does not exist."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
        self.model.cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        self.x, self.y = torch.randn(8, 6, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")

    def backward(self):
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.scaler.scale(loss).backward()
        return loss

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self):
        held = [*self.model.state_dict().values()]
        return [tensor.clone() for tensor in held]

    def warm(self):
        for _ in range(2):
            self.optimizer.zero_grad(set_to_none=True)
            self.backward()
            self.step()
        self.optimizer.zero_grad(set_to_none=True)


def graphed():
    training = Training()
    training.warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        loss = training.backward()
    losses = []
    for x, y in batches():
        training.x.copy_(x)
        training.y.copy_(y)
        graph.replay()
        training.step()
        losses.append(loss.item())
    return losses, training.state()


def eager():
    training = Training()
    training.warm()
    training.backward()  # what the capture runs once on a CPU
    losses = []
    for x, y in batches():
        training.x.copy_(x)
        training.y.copy_(y)
        training.optimizer.zero_grad()
        losses.append(training.backward().item())
        training.step()
    return losses, training.state()


def test_a_graph_computes_what_the_same_loop_computes_and_is_never_safe():
    with ampcheck.watch(as_cuda=True, first=9) as watching:
        losses, state = graphed()
    with ampcheck.watch(as_cuda=True, first=0, every=0):
        expected, known = eager()
    assert losses == expected
    assert all(map(torch.equal, state, known))
    report = watching.report()
    assert report.loop is not None
    assert (report.loop.steps, len(report.loop.recorded)) == (7, 2)
    assert report.low.not_audited[GRAPHS] == 5
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert not report.findings
    assert any(GRAPHS in gap for gap in report.verdict.coverage.gaps)


def test_callables_that_would_become_graphs_run_as_they_are_on_a_cpu():
    with ampcheck.watch(as_cuda=True) as watching:
        training = Training()
        training.model = torch.cuda.make_graphed_callables(training.model, (training.x,))
        training.warm()
        training.warm()
    report = watching.report()
    assert not report.low.not_audited
    assert report.verdict.word is Health.SAFE


def test_nothing_is_heard_while_a_graph_is_captured():
    with ampcheck.watch(as_cuda=True) as watching:
        training = Training()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        training.backward()
        training.optimizer.step()
        graph.capture_end()
        assert watching.steps == 0
        training.warm()
        assert watching.steps == 2
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_a_view_that_autograd_has_lost_track_of_does_not_end_the_watch():
    with ampcheck.watch() as watching:
        base = torch.ones(4, dtype=torch.bfloat16)
        with torch.no_grad():
            view = base[:2]
        base.mul_(torch.ones(4, dtype=torch.bfloat16, requires_grad=True))
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert not watching.report().low.not_audited
    del view
