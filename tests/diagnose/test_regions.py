"""Lines written anew in FP32: run beside the script's own, they give what FP32 gives, and modules stay in half."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampcheck.diagnose.rules.regions import in_fp32_but_for_modules
from ampcheck.values.trace import Phase, Site

PATHS = ("model", "model.body", "model.blocks.0", "critic", "critic.0")
SCRIPT = """
def step(x, far):
    baseline = far + far * critic(x).squeeze(1)
    error = (baseline - far) / far
    later = error + critic(error)
    total = sum(critic(one) for one in (x, x))
    if critic(x).sum() > 0: error = -error
    return torch.sigmoid(self.body(critic(x)) + critic(x))
"""
ONE = [
    "result = critic(x)",
    'with torch.autocast("cuda", enabled=False):  # with .float() on far, where that is a tensor',
    "    baseline = far + far * result.float().squeeze(1)",
]


def written(tmp_path, line, last=0, module="", text=SCRIPT):
    """Return the lines written anew for an operation of a module at a line, to the last one."""
    script = tmp_path / "script.py"
    script.write_text(text)
    modules = [SimpleNamespace(path=path) for path in PATHS]
    report = SimpleNamespace(low=SimpleNamespace(modules=modules), loop=None, environment={"casting": "cuda"})
    return [
        *in_fp32_but_for_modules(
            report, Site(module, "add", "output", Phase.FORWARD, "", str(script), line), last
        )
    ]


@pytest.mark.parametrize(
    ("line", "last", "module", "lines"),
    [
        (3, 0, "", ONE),
        (3, 4, "", [*ONE, "    error = (baseline - far) / far"]),
        (3, 0, "model", ONE),
        (3, 0, "critic.0", []),  # it is within the call
        (4, 0, "", []),  # no module
        (4, 5, "", []),  # the call reads what is computed here
        (6, 0, "", []),  # one call for each of many
        (7, 0, "", []),  # no simple statement
        (
            8,
            0,
            "model",
            [
                "result = self.body(critic(x))",
                "result_2 = critic(x)",
                'with torch.autocast("cuda", enabled=False):',
            ],
        ),
    ],
)
def test_calls_of_modules_are_made_before_the_region(tmp_path, line, last, module, lines):
    found = written(tmp_path, line, last, module)
    assert found[: len(lines)] == lines
    assert bool(found) is bool(lines)
    if line == 8:
        assert found[3:] == ["    return torch.sigmoid(result.float() + result_2.float())"]


@pytest.mark.parametrize(
    ("call", "known"),
    [("self.blocks[0](x)", True), ("model.body(x)", True), ("x.body(x)", False), ("body(x)", False)],
)
def test_a_call_is_of_a_module_by_its_path(tmp_path, call, known):
    assert bool(written(tmp_path, 1, text=f"y = {call} + 1\n")) is known


def test_a_name_of_the_script_is_not_taken(tmp_path):
    found = written(tmp_path, 2, text="result = 1\ny = critic(x) + result\n")
    assert found[0] == "result_1 = critic(x)"


def test_what_is_written_holds_what_overflows_in_half_precision(tmp_path):
    torch.manual_seed(0)
    critic, x = nn.Linear(4, 1), torch.randn(64, 4)
    code = "y = 50000.0 + 60000.0 * critic(x)"
    lines = written(tmp_path, 1, text=f"{code}\n")
    made = {"critic": critic, "x": x, "torch": torch}
    with torch.autocast("cpu", torch.float16):
        exec(code, made)  # what a user would run
        assert not bool(made["y"].isfinite().all())
        exec("\n".join(lines).replace('"cuda"', '"cpu"'), made)
    assert made["result"].dtype is torch.float16
    wide = 50000.0 + 60000.0 * critic(x)
    assert torch.allclose(made["y"], wide, rtol=1e-2, atol=100.0)
