"""What a script compiles: its recorded steps are seen as if nothing had been compiled, and the others are graphs."""

import pytest
import torch
from torch import nn
from torch._dynamo import trace_rules
from torch._dynamo.testing import CompileCounter

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule

HOWS = ["module", "in place", "function", "step"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def loss_of(model, x, y):
    with torch.autocast("cpu", torch.float16):
        return nn.functional.cross_entropy(model(x), y)


def trained(how, steps=10, backend="eager"):
    """Train and validate; return the losses of both."""
    torch.manual_seed(0)
    model, loss = Net(), loss_of
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    if how == "module":
        model = torch.compile(model, backend=backend)
    elif how == "in place":
        model.compile(backend=backend)
    elif how == "function":
        loss = torch.compile(loss_of, backend=backend)

    def step(x, y):
        optimizer.zero_grad()
        value = loss(model, x, y)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        return value.detach()

    if how == "step":
        step = torch.compile(step, backend=backend)
    seen = []
    for _ in range(steps):
        model.train()
        seen.append(step(torch.randn(16, 8), torch.randint(0, 4, (16,))).item())
        model.eval()
        with torch.no_grad():
            seen.append(model(torch.randn(16, 8)).sum().item())
    return seen


def watched(how, **options):
    torch._dynamo.reset()
    session = Session(Schedule(first=1, every=4))
    with session.watching():
        seen = trained(how, **options)
    return seen, session


def numbers(session):
    """Return the statistics of operations by place: which line calls them is the compiler's at times."""
    sites = session.report("a script").low.sites
    return {(site.module, site.op, site.slot, site.phase): stats for site, stats in sites.items() if site.op}


@pytest.fixture(scope="module")
def plain():
    seen, session = watched("")
    assert session.watcher.compiler.asked == 0
    return seen, numbers(session)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated"
)  # where older torch compiles a step
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler says it of such a step
def test_compiled_scripts_are_seen_as_uncompiled_ones(plain, how):
    seen, session = watched(how)
    assert seen == plain[0]  # the backend called eager adds no rounding of its own
    assert [recorded.step for recorded in session.watcher.tape.recorded] == [0, 4, 8]
    assert numbers(session) == plain[1]
    assert session.watcher.compiler.asked == 1
    assert any("torch.compile" in note for note in session.report("a script").notes)
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.mark.parametrize("how", ["module", "in place"])
def test_a_graph_serves_all_the_steps_that_are_not_recorded(how):
    made = []
    for steps in (10, 30):
        counter = CompileCounter()
        watched(how, steps=steps, backend=counter)
        made.append(counter.frame_count)
    assert made[0] == made[1] > 0


def replaced():
    names = ("_dynamo_restore_local_dispatch_key_set", "_ForceDispatchKeyGuard")
    held = [getattr(torch._C, name, None) for name in names]
    return [*held, torch.compile, nn.modules.module._has_any_global_hook, set(trace_rules.FORCE_SKIP_FILES)]


def test_nothing_stays_behind():
    before = replaced()
    tables = [
        nn.modules.module._global_forward_pre_hooks,
        nn.modules.module._global_forward_hooks,
        nn.modules.module._global_forward_hooks_always_called,
    ]
    session = Session(Schedule(first=1, every=1))
    with session.watching():
        model = torch.compile(Net(), backend="eager")
        model(torch.randn(2, 8)).sum()  # a step is open
        assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    assert replaced() == before
    assert not any(tables)
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_for_a_cpu_that_stands_in_for_cuda_nothing_is_compiled():
    torch._dynamo.reset()
    counter = CompileCounter()
    session = Session(Schedule(first=1, every=0), as_cuda=True)
    with session.watching():
        model = torch.compile(Net().cuda(), backend=counter)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler()
        for _ in range(3):
            with torch.autocast("cuda"):
                loss = model(torch.randn(4, 8, device="cuda")).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert counter.frame_count == 0
    assert session.watcher.steps == 3
    assert "addmm" in {site.op for site in session.report("a script").low.sites}
