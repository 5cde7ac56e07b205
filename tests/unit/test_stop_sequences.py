"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.errors import ConfigError
from rlcore.stop_sequences import checked_stop_sequences, find_stop, match_stop


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "piece"),
    [
        (["Hel", "lo", "\n", "\nBye"], ["\n\n"], "Hello", 3),
        (["halt."], ["t"], "hal", 0),
        (["a", "b", "</", "s", ">", "c"], ["</s>"], "ab", 4),
        # "ab" begins before "b", though both are complete at the same time
        (["xab"], ["b", "ab"], "x", 0),
        # a false start, then the stop string, which overlaps it
        (["aa", "ab"], ["aab"], "a", 1),
        (["x", "y"], ["zz", ""], "xy", None),
        ([], ["a"], "", None),
        (["x"], None, "x", None),
    ],
)
def test_text_ends_before_the_first_stop_string(pieces, stop, text, piece):
    assert match_stop(pieces, stop) == (text, piece)


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", max_size=3), max_size=3))
def test_cuts_of_the_text_into_pieces_do_not_matter(pieces, stop):
    whole = "".join(pieces)
    text, piece = match_stop(pieces, stop)
    if piece is None:
        assert text == whole
        assert not any(entry and entry in whole for entry in stop)
    else:
        # the piece that stopped is the first after which a stop string is complete, and none begins earlier
        seen, before = "".join(pieces[: piece + 1]), "".join(pieces[:piece])
        assert not any(entry and entry in before for entry in stop)
        assert len(text) == min(seen.find(entry) for entry in stop if entry and entry in seen)
        assert whole.startswith(text)


def test_a_search_may_begin_further_on():
    assert find_stop("abab", ["b"]) == 1
    assert find_stop("abab", ["b"], start=2) == 3
    assert find_stop("abab", ["b"], start=4) is None


@pytest.mark.parametrize(
    ("stop", "match"),
    [("\n\n", "one string, expected a list"), ([3], "found 3, expected text"), (3, "found 3, expected a list")],
)
def test_stop_strings_come_as_a_list_of_texts(stop, match):
    with pytest.raises(ConfigError, match=match):
        checked_stop_sequences(stop)
