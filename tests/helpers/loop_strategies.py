"""Loops drawn at random, for tests that hold for every loop."""

from hypothesis import strategies as st

from ampcheck.values.loop import Cause, Event, Kind, Loop, LoopObject, ScaleEvent

texts = st.text(max_size=6)
scales = st.floats(allow_nan=False)
labels = st.sampled_from(["optimizer 1", "scaler 1", "model 1"])
events = st.builds(
    Event,
    kind=st.sampled_from(Kind),
    thing=labels,
    name=texts,
    targets=st.lists(labels, max_size=2).map(tuple),
    autocast=st.sampled_from(["", "float16"]),
    grad=st.booleans(),
    scaled=st.booleans(),
    file=texts,
    line=st.integers(0, 99),
)
rounds = st.lists(st.lists(events, max_size=4).map(tuple), min_size=1, max_size=4).map(tuple)
causes = st.builds(Cause, texts, texts, labels, texts, texts, st.integers(0, 99), st.integers(0, 9))
settings = st.dictionaries(texts, texts | st.booleans() | st.floats(0, 1), max_size=2)


@st.composite
def loops(draw):
    seen = draw(rounds)
    run = st.tuples(st.integers(0, len(seen) - 1), st.integers(1, 5))
    return Loop(
        rounds=seen,
        order=tuple(draw(st.lists(run, max_size=5))),
        things=tuple(draw(st.lists(st.builds(LoopObject, labels, texts, settings), max_size=2))),
        scales=tuple(
            draw(
                st.lists(
                    st.builds(
                        ScaleEvent,
                        st.integers(0, 99),
                        labels,
                        scales,
                        scales,
                        st.booleans(),
                        st.none() | causes,
                    ),
                    max_size=3,
                )
            )
        ),
        first_scales=draw(st.dictionaries(labels, scales, max_size=2)),
        steps=draw(st.integers(0, 99)),
        recorded=tuple(draw(st.lists(st.integers(0, 99), max_size=3))),
        children=draw(st.integers(0, 9)),
    )
