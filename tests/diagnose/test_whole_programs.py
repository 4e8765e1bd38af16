"""Whole programs with known answers: no failure is called safe, and no healthy one an error."""

import tomllib

import pytest
import score_programs

#: Verdicts that are known to be wrong, and why.
WRONG = {
    "j14_energy_load_replay": "a copy of the weights in bf16 makes most of a gradient that is nearly zero",
    "q61_sources": "central differences in bf16 are nearly all noise, and train all the same",
    "z22_tabular_half_monitor": "a buffer that becomes infinite is an error: that it is only logged cannot be seen",
}
TRUTHS = tomllib.loads((score_programs.HERE / "truth.toml").read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("name", TRUTHS)
def test_no_failure_is_safe_and_no_healthy_program_an_error(name):
    row = score_programs.mark(name, TRUTHS[name])
    assert row["word"] not in {"", "no report"}, row["said"]
    assert bool(score_programs.is_wrong(row, TRUTHS[name])) is (name in WRONG)


def test_the_judge_can_fail():
    wrong = score_programs.is_wrong
    assert wrong({"word": "safe", "errors": []}, {"failure": True})
    assert wrong({"word": "unsafe", "errors": []}, {"failure": False})
    assert not wrong({"word": "partly audited", "errors": []}, {"failure": True})
    assert {truth["failure"] for truth in TRUTHS.values()} == {True, False}
