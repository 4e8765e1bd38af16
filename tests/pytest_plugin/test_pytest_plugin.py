"""The pytest plug-in as its users meet it: what fails, with which exit status, and what is printed then."""

import importlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import forked
import pytest
import torch
from readme import block
from startup_modules import loaded_by

from ampcheck import check
from ampcheck.cli import main
from ampcheck.compare.config import NAMES
from ampcheck.pytest_plugin import options

SAMPLE = Path(__file__).parents[1] / "sample_project"
COMMON = ("-p", "no:cacheprovider", "--no-header")
CAST = "        x = x.float()\n"
TWO = """
import pytest
import torch
from torch import nn


class Tiny(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)


@pytest.mark.ampcheck(precision="bf16")
class Wide(nn.Linear):
    def __init__(self):
        super().__init__(4, 8)


def batch():
    return torch.randn(8, 4)


def loss(model, batch):
    return model(batch).square().mean()
"""


@pytest.fixture(scope="session")
def torch_is_loaded():
    """Load all that an audit needs: pytester forgets what is imported inside, and torch cannot be loaded twice."""
    importlib.import_module("torch._dynamo")  # which manual_seed() imports

    model = torch.nn.Linear(2, 2)
    check(model, torch.randn(2, 2), lambda model, batch: (model(batch) * 1e6).square().sum())


@pytest.fixture
def project(pytester, torch_is_loaded):
    shutil.copytree(SAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester


def broken(project):
    """Take the FP32 island out of the sample's norm."""
    text = (project.path / "model.py").read_text()
    assert text.count(CAST) == 1
    (project.path / "model.py").write_text(text.replace(CAST, ""))
    return text


def run(project, *words):
    # pytest would rewrite a plug-in that is loaded already
    return project.runpytest_inprocess("-W", "ignore::pytest.PytestAssertRewriteWarning", *COMMON, *words)


def printed(result):
    """Return what was printed, once our lines of it are known to fit on a screen of 100 columns."""
    text = str(result.stdout)
    ours = ("E  ", "SAFE", "RISK", "UNSAFE", "        ", "…", "=", "ampcheck")
    assert max(len(line) for line in text.splitlines() if line.startswith(ours)) <= 100
    return text


def properties(path):
    """Return by test what JUnit was told, as pairs."""
    cases = ET.parse(path).iter("testcase")
    return {
        case.get("name"): [(p.get("name"), p.get("value")) for p in case.iter("property")] for case in cases
    }


def test_the_sample_passes_fails_for_the_right_reason_when_a_layer_breaks_and_passes_again(project):
    assert run(project).ret == pytest.ExitCode.OK
    healthy = broken(project)
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=3)
    text = printed(result)
    assert text.count("error[AMP101] forward-overflow  model.py:9") == 3
    assert text.count("9 | return x / (x * x).mean(-1, keepdim=True).sqrt()") == 3
    assert text.count("- keep norm in FP32") == 3
    assert text.count("+            x = x.float()") == 3
    assert "E       AssertionError: AMP101 forward-overflow in fp16" in text
    assert "E       AssertionError: 1 dtype not as expected" in text
    assert "E         norm  expected fp32, got fp16" in text
    assert "E       AssertionError: fp16 overflows in the forward, first mul in norm" in text
    assert "pytest_plugin" not in text
    assert "expectations.py" not in text
    (project.path / "model.py").write_text(healthy)
    assert run(project).ret == pytest.ExitCode.OK


def test_the_patch_that_a_failure_prints_heals_the_sample(project):
    healthy = broken(project)
    lines = printed(run(project, "test_precision.py::test_trains_in_fp16")).splitlines()
    start = next(number for number, line in enumerate(lines) if "--- a/model.py" in line)
    end = next(number for number, line in enumerate(lines) if "more: ampcheck explain" in line)
    indent = lines[start].index("---")
    (project.path / "remedy_lines.diff").write_text(
        "".join(f"{line[indent:]}\n" for line in lines[start:end])
    )
    subprocess.run(["git", "apply", "--recount", "remedy_lines.diff"], cwd=project.path, check=True)
    assert CAST in (project.path / "model.py").read_text() != healthy
    assert run(project, "test_precision.py::test_trains_in_fp16").ret == pytest.ExitCode.OK


def test_workers_of_xdist_tell_one_summary_and_write_one_baseline(project):
    """In processes of their own: workers load torch themselves, as a user's do."""
    healthy = broken(project)
    update = ("--ampcheck-baseline", "new.json", "--ampcheck-update-baseline")
    result = project.runpytest_subprocess(*COMMON, "-n", "2", "--junit-xml=out.xml", *update)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(
        failed=2, passed=1
    )  # what a test expects of dtypes and ranges, no baseline accepts
    text = printed(result)
    assert text.count("ampcheck: 3 audits, 3 risk") == 1
    alone = run(
        project, "--junit-xml=alone.xml", "--ampcheck-baseline", "old.json", "--ampcheck-update-baseline"
    )
    assert summary(text) == summary(printed(alone))
    assert properties(project.path / "out.xml") == properties(project.path / "alone.xml")
    assert "3 baselines written to new.json" in text
    assert "3 findings accepted" in text
    (project.path / "model.py").write_text(healthy)
    gone = str(run(project, "--ampcheck-baseline", "new.json").stdout)
    assert gone.count("AMP101 forward-overflow at norm · mul is gone") == 3


def summary(text):
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if "ampcheck: 3 audits" in line)
    return lines[start + 1 : start + 8]


def test_a_target_is_held_against_its_baseline_and_accepted_anew(project, monkeypatch):
    words = ("--ampcheck", "model.py", "--ampcheck-baseline", "ampcheck-baseline.json")
    assert run(project, *words).ret == pytest.ExitCode.OK
    broken(project)
    result = run(project, *words)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = str(result.stdout)
    assert "3 differences from the baseline" in text
    assert "+ AMP101 forward-overflow at norm · mul is new (error)" in text
    assert "error[AMP101] forward-overflow  model.py:9" in text
    command = next(line for line in text.splitlines() if "$ pytest" in line).split("$ pytest ")[1]
    result = run(project, *command.split(), "--ampcheck-reason", "rows of the sample are rare")
    assert result.ret == pytest.ExitCode.OK
    assert "1 baseline written to ampcheck-baseline.json" in str(result.stdout)
    assert "(AMP101)" in str(result.stdout)
    assert run(project, *words).ret == pytest.ExitCode.OK
    # The command line reads the same file, under the same name.
    assert main(["model.py", "--baseline", "ampcheck-baseline.json"]) == 0


def test_every_audit_leaves_its_reports_in_a_folder(project):
    broken(project)
    run(project, "--ampcheck", "model.py", "--ampcheck-report", "reports")
    files = {path.name for path in (project.path / "reports").iterdir()}
    stems = {name.rpartition(".")[0] for name in files if name.endswith(".html")}
    assert "model.py-fp16" in stems
    assert {f"{stem}{ending}" for stem in stems for ending in (".html", ".md", ".sarif")} <= files
    log = json.loads((project.path / "reports" / "model.py-fp16.sarif").read_text())
    assert "AMP101" in {result["ruleId"] for result in log["runs"][0]["results"]}


def test_an_improvement_is_no_less_a_difference(project):
    words = ("--ampcheck", "model.py", "--ampcheck-baseline", "ampcheck-baseline.json")
    healthy = broken(project)
    assert (
        run(project, *words, "--ampcheck-update-baseline", "--ampcheck-reason", "known").ret
        == pytest.ExitCode.OK
    )
    (project.path / "model.py").write_text(healthy)
    result = run(project, *words)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "AMP101 forward-overflow at norm · mul is gone (error)" in str(result.stdout)
    assert "what heals it" not in str(result.stdout)


def test_an_audit_that_no_baseline_knows_fails_with_the_command_that_adds_it(project):
    result = run(project, "-k", "gradients", "--ampcheck-baseline", "ampcheck-baseline.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = str(result.stdout)
    assert "no baseline of 'test_precision.py::test_gradients_fit fp16'" in text
    assert "pytest test_precision.py::test_gradients_fit --ampcheck-baseline" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ampcheck", "modell.py"], "no such file: 'modell.py'; did you mean model.py"),
        (["--ampcheck", "torchvision:resnet18"], "expected FILE.py or FILE.py:NAME"),
        (["--ampcheck-precision", "fp4"], "got 'fp4'"),
        (["--ampcheck-fail-on", "eror"], "did you mean error?"),
        (["--ampcheck-steps", "many"], "expected a whole number from 1 on, got 'many'"),
        (["--ampcheck-ignore", "AMP101,near-overflw"], "did you mean near-overflow"),
        (
            ["-o", "ampcheck_fail_onn=error"],
            "unknown option 'ampcheck_fail_onn'; did you mean ampcheck_fail_on",
        ),
        (["--ampcheck-update-baseline"], "expected a baseline to update"),
        (["--ampcheck-baseline", "model.py"], "expected a baseline, got something that is not JSON"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(project, words, said):
    result = run(project, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in str(result.stderr)
    assert "Traceback" not in str(result.stderr)


def test_a_wrong_key_in_pyproject_fails_the_audit_with_a_suggestion(project):
    with (project.path / "pyproject.toml").open("a") as file:
        file.write('fail_onn = "error"\n')
    result = run(project, "-k", "trains")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "has no key 'fail_onn'; did you mean fail-on?" in str(result.stdout)


def test_every_target_of_a_file_is_a_test_in_every_precision(project):
    project.makepyfile(ampcheck_two=TWO)
    junit = "--junit-xml=out.xml"
    result = run(project, "--ampcheck", "ampcheck_two.py", "-v", junit, "--ampcheck-precision", "fp16,bf16")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=3)
    printed(result)
    assert list(properties(project.path / "out.xml")) == ["Tiny[fp16]", "Tiny[bf16]", "Wide[bf16]"]
    result = run(project, "--ampcheck", "ampcheck_two.py:Wide", "--ampcheck", "model.py", "test_precision.py")
    result.assert_outcomes(passed=5)
    result = run(project, "--ampcheck-files", "ampcheck_*.py", "-k", "Tiny")
    result.assert_outcomes(passed=1, deselected=4)
    result = run(project, "--ampcheck", "ampcheck_two.py", "ampcheck_two.py::Wide[bf16]")
    result.assert_outcomes(passed=1)


def test_a_target_that_does_not_load_says_so_at_the_users_line(project):
    project.makepyfile(bad_file="import torch\nx = 1 / 0\n", bad_shape=TWO.replace("8, 4)", "8, 5)"))
    result = run(project, "--ampcheck", "bad_file.py")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "bad_file.py:2: ZeroDivisionError" in str(result.stdout)
    result = run(project, "--ampcheck", "bad_shape.py:Tiny", "--ampcheck", "bad_shape.py:Tinny")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = str(result.stdout)
    assert "did you mean Tiny" in text
    assert "shape" in text
    assert "auditing.py" not in text


MARKED = """
import pytest, torch
from model import batch, loss, model

@pytest.mark.ampcheck(precision=["fp16", "bf16"], fail_on="error")
def test_both(amp_audit):
    torch.manual_seed(0)
    amp_audit(model(), batch(), loss)

@pytest.mark.ampcheck(fail_on="error", ignore=["forward-overflow"])
def test_ignored(amp_audit):
    torch.manual_seed(0)
    amp_audit(model(), batch(), loss)
    amp_audit(model(), batch(), loss, precision="bf16")
"""


def test_markers_say_how_to_audit_and_may_be_all_of_a_test(project):
    broken(project)
    project.makepyfile(test_marked=MARKED)
    result = run(project, "test_marked.py", "--junit-xml=out.xml")
    result.assert_outcomes(passed=2, failed=1)
    told = properties(project.path / "out.xml")
    assert list(told) == ["test_both[fp16]", "test_both[bf16]", "test_ignored"]
    assert dict(told["test_both[fp16]"])["ampcheck.findings"] == "AMP101"
    assert [value for name, value in told["test_ignored"] if name == "ampcheck.precision"] == ["fp16", "bf16"]
    assert ("ampcheck.suppressed", "AMP101") in told["test_ignored"]
    assert "ampcheck: 4 audits, 1 unsafe, 1 risk, 2 safe" in printed(result)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("precison='fp16'", "no argument 'precison'; did you mean precision?"),
        ("precision='fp4'", "got 'fp4'"),
        ("fail_on='eror'", "did you mean error?"),
        ("ignore=['AMP999']", "'AMP999'"),
        ("'fp16'", "by name, got ('fp16',)"),
    ],
)
def test_a_marker_that_makes_no_sense_fails_its_test(project, arguments, said):
    project.makepyfile(f"import pytest\n@pytest.mark.ampcheck({arguments})\ndef test_it(amp_audit): pass\n")
    result = run(project, "test_a_marker_that_makes_no_sense_fails_its_test.py")
    assert result.ret != pytest.ExitCode.OK
    assert said in str(result.stdout)
    assert "INTERNALERROR" not in str(result.stdout)


def test_what_the_user_raises_is_one_message_at_their_line(project):
    project.makepyfile(
        test_raises="""
        import torch
        from model import batch, loss, model

        def test_wrong_batch(amp_audit):
            amp_audit(model(), (torch.randn(2, 3), None), loss)
        """
    )
    result = run(project, "test_raises.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = str(result.stdout)
    assert "Failed: model.py:19: RuntimeError" in text
    assert "audit.py" not in text


def test_without_the_plug_in_other_plug_ins_or_an_audit_nothing_is_said_and_nothing_written(project):
    project.makepyfile(test_plain="def test_plain(): pass\n")
    before = sorted(path.name for path in project.path.iterdir())
    without = ("ampcheck", "benchmark", "xdist", "junitxml", "terminal")
    for words in ((), *(("-p", f"no:{name}") for name in without)):
        result = project.runpytest_inprocess("-p", "no:cacheprovider", "test_plain.py", *words)
        assert result.ret == pytest.ExitCode.OK
        assert "ampcheck:" not in str(result.stdout)
    for theirs in ("__pycache__", ".benchmarks"):  # Python's, pytest-benchmark's
        shutil.rmtree(project.path / theirs, ignore_errors=True)
    assert sorted(path.name for path in project.path.iterdir()) == before
    result = run(project, "-p", "no:ampcheck", "-k", "trains")
    assert "fixture 'amp_audit' not found" in str(result.stdout)


@pytest.mark.parametrize(("words", "loaded"), [([], True), (["-p", "no:ampcheck"], False)])
def test_an_empty_run_loads_the_plug_in_and_nothing_heavy(tmp_path, words, loaded):
    command = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--rootdir", str(tmp_path)]
    statement = f"import pytest; sys.exit(pytest.main({[*command, str(tmp_path), *words]}))"
    status, names, _ = loaded_by(statement)
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert names.isdisjoint({"torch", "numpy", "pandas", "rich", "tomllib", "jinja2"})
    assert ("ampcheck" in names) is loaded


def test_names_are_the_same_in_pyproject_on_the_command_line_and_among_ini_options():
    assert set(options.SHARED) <= set(NAMES)
    assert options.ini("fail-on") == "ampcheck_fail_on"


def test_ini_names_do_what_options_do(project):
    broken(project)
    text = (project.path / "pyproject.toml").read_text()
    lines = '[tool.pytest.ini_options]\nampcheck_ignore = ["AMP101"]\nampcheck_files = "model.py"'
    (project.path / "pyproject.toml").write_text(text.replace("[tool.pytest.ini_options]", lines))
    run(project, "-k", "trains or model").assert_outcomes(passed=2, deselected=2)
    # An option on the command line takes the place of an ini name.
    run(project, "-k", "trains", "--ampcheck-ignore", "AMP202").assert_outcomes(failed=1, deselected=3)


def test_quiet_is_one_line_and_verbose_shows_every_verdict(project):
    quiet = printed(run(project, "-q"))
    assert quiet.count("ampcheck") == 1
    assert "ampcheck: 3 audits, 3 safe" in quiet
    assert printed(run(project, "-v")).count("gradient elements underflow") == 3


def test_threads_wait_passively_only_while_torch_is_loaded(monkeypatch):
    from ampcheck.pytest_plugin.collecting import _threads_wait_passively

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with _threads_wait_passively():
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY" not in os.environ


def test_the_readmes_test_finds_what_the_readme_shows(project):
    (project.path / "net.py").write_text(block("A model of your own"))
    (project.path / "test_precision.py").write_text(block("## Guard it in CI"))
    result = run(project, "test_precision.py", "-q")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "error[AMP101] forward-overflow  net.py:8" in printed(result)
    lines = [line.split() for line in printed(result).splitlines()]
    for line in block("<!-- output: pytest -->").splitlines()[1:]:
        assert line.split() in lines, line


SWEEP = """
import pytest
import timm
import torch
from torch.nn.functional import cross_entropy


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_byobnet", "test_vit"])
def test_trains(amp_audit, name):
    torch.manual_seed(0)
    kind = {"img_size": 32} if name == "test_vit" else {}
    model = timm.create_model(name, num_classes=4, **kind)
    batch = torch.randn(2, 3, 32, 32), torch.tensor([0, 3])
    audited = amp_audit(model, batch, lambda model, batch: cross_entropy(model(batch[0]), batch[1]), verify=False)
    audited.assert_no_overflow()
"""


def test_a_sweep_over_models_is_shared_among_workers_and_tells_the_same(pytester, monkeypatch):
    pytester.makepyfile(test_sweep=SWEEP)
    monkeypatch.setattr(pytester, "_getpytestargs", lambda: (*forked.python(), "-mpytest"))
    shared = pytester.runpytest_subprocess(*COMMON, "-v", "-n", "2", "--junit-xml=shared.xml")
    shared.assert_outcomes(passed=4)
    text = str(shared.stdout)
    assert {"[gw0]", "[gw1]"} <= set(text.split())
    assert text.count("ampcheck: 4 audits, ") == 1
    alone = pytester.runpytest_subprocess(*COMMON, "--junit-xml=alone.xml")
    alone.assert_outcomes(passed=4)
    found = properties(pytester.path / "alone.xml")
    assert len(found) == 4
    assert properties(pytester.path / "shared.xml") == found
