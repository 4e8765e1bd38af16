"""When one run of a step counts as better than another: by more than noise."""

from hypothesis import given
from hypothesis import strategies as st

from ampcheck.values.outcome import BETTER, HARM_ERROR, SHOWN_UNDERFLOW, Outcome

numbers = st.floats(0, 2)
outcomes = st.builds(
    Outcome,
    st.just(0),
    grad_error=numbers,
    underflow=st.floats(0, 1),
    loss_nonfinite=st.booleans(),
    next_error=numbers,
)


@given(outcomes, outcomes)
def test_better_is_well_or_less_ill_by_more_than_noise(before, after):
    if not after.better_than(before):
        return
    assert after.finite
    assert not (before.harmed and after.harmed)
    if before.finite:
        less = before.worst > BETTER * after.worst
        assert less or before.underflow >= after.underflow + SHOWN_UNDERFLOW
    assert not before.better_than(after) or before.underflow != after.underflow


@given(outcomes)
def test_nothing_is_better_than_itself(outcome):
    assert not outcome.better_than(outcome)


def test_a_step_across_the_limit_is_no_remedy_where_it_is_noise():
    before, after = Outcome(0, grad_error=HARM_ERROR + 1e-4), Outcome(0, grad_error=HARM_ERROR - 1e-4)
    assert before.harmed
    assert not after.harmed
    assert not after.better_than(before)
    assert Outcome(0, grad_error=HARM_ERROR / 2).better_than(before)
    assert after.better_than(Outcome(0, loss_nonfinite=True))
