"""Checks of single arguments: what passes comes back in plain form, what does not is named in the message."""

from fractions import Fraction

import numpy as np
import pytest

from cavity._checks import flag, nonnegative_number, number_between, one_of, positive_number, shown, whole_number

# Neither a number nor a name.
NOTHING = (None, [], [1], (1,), {}, object(), np.ones(1), np.ones((1, 1)), 1j, np.complex128(1.0), b"1", print)
NUMBERS = (0, 1, -1, 0.5, np.inf, -np.inf, np.nan, 10**400)


@pytest.mark.parametrize("value", [3, 3.0, np.int8(3), np.uint64(3), np.float32(3.0), np.array(3), Fraction(3)])
def test_a_number_of_any_type_comes_back_plain(value):
    assert whole_number("n", value, least=3, most=3) == 3
    assert type(whole_number("n", value)) is int
    for number in (
        positive_number("x", value),
        nonnegative_number("x", value),
        number_between("x", value, 3.0, 4.0, "[)"),
    ):
        assert number == 3.0
        assert type(number) is float


def test_a_whole_number_may_be_larger_than_any_float():
    assert whole_number("n", 10**400, least=0) == 10**400


@pytest.mark.parametrize("value", [*NOTHING, "1", "x", True, np.True_, 0.5, np.nan, np.inf, -np.inf])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match=r"^n must be a whole number, got "):
        whole_number("n", value)


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        ({"least": 1}, 0, "n must be a whole number of at least 1, got 0"),
        ({"least": 1, "most": 8}, 9, "n must be a whole number from 1 to 8, got 9"),
        ({"least": 1, "most": 8}, np.int64(0), "n must be a whole number from 1 to 8, got 0"),
    ],
)
def test_limits_of_a_whole_number(limits, value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        whole_number("n", value, **limits)


@pytest.mark.parametrize("value", [*NOTHING, "1", True, np.True_, 0, 0.0, -1e-300, np.nan, np.inf, -np.inf, 10**400])
def test_what_is_not_positive_is_refused(value):
    with pytest.raises(ValueError, match=r"^x must be positive and finite, got "):
        positive_number("x", value)


@pytest.mark.parametrize("value", [*NOTHING, "1", True, np.True_, -1e-300, np.nan, np.inf, -np.inf, 10**400])
def test_what_is_negative_or_infinite_is_refused(value):
    assert nonnegative_number("x", 0) == 0.0
    with pytest.raises(ValueError, match=r"^x must be a finite number of at least 0, got "):
        nonnegative_number("x", value)


@pytest.mark.parametrize(("ends", "low", "high"), [("[]", True, True), ("(]", False, True), ("[)", True, False)])
def test_ends_of_an_interval_count_as_said(ends, low, high):
    message = rf"^x must lie in \{ends[0]}0, 1\{ends[1]}, got "
    for value, belongs in ((0.0, low), (0.5, True), (1.0, high)):
        if belongs:
            assert number_between("x", value, 0.0, 1.0, ends) == value
        else:
            with pytest.raises(ValueError, match=message):
                number_between("x", value, 0.0, 1.0, ends)
    for value in (*NOTHING, "0.5", True, -0.1, 1.1, np.nan, np.inf, -np.inf, 10**400):
        with pytest.raises(ValueError, match=message):
            number_between("x", value, 0.0, 1.0, ends)


@pytest.mark.parametrize("value", [*NOTHING, *NUMBERS, "c", "A", True, np.array(["a", "b"])])
def test_what_is_none_of_the_names_is_refused(value):
    assert one_of("x", np.str_("a"), ("a", "b")) == "a"
    with pytest.raises(ValueError, match=r"^x must be 'a', 'b' or 'd', got "):
        one_of("x", value, ("a", "b", "d"))


def test_a_flag_is_yes_or_no():
    for value in (True, np.True_, 1, np.int8(1)):
        assert flag("x", value) is True
    for value in (False, np.False_, 0, np.array(False)):
        assert flag("x", value) is False
    for value in (*NOTHING, "yes", 2, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"^x must be True or False, got "):
            flag("x", value)


def test_a_message_is_short_and_a_number_in_it_plain():
    assert shown(np.float64(0.5)) == "0.5"
    assert shown("x") == "'x'"
    assert len(shown("x" * 10_000)) < 200
    assert len(shown(list(range(10_000)))) < 200
    assert len(shown(np.zeros(10_000))) < 200
