import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import all_components
from cavity import schedules
from cavity.schedules import Annealing, Cyclic, Given, Order, Shuffled, Steps, Temperature, resolve_beta, resolve_order

ROUNDING = 1e-12
# What is no positive number.
WRONG = (0.0, -1.0, np.inf, np.nan, None, "1", True, [1.0])


@pytest.mark.parametrize("schedule", all_components(schedules), ids=repr)
def test_every_schedule_is_an_order_or_a_temperature_and_depends_on_the_loop_only(schedule):
    assert isinstance(schedule, Order) != isinstance(schedule, Temperature)
    for loop in (0, 1, 7):
        if isinstance(schedule, Order):
            visits = schedule.visits(5, loop)
            assert visits.dtype == np.intp
            assert np.array_equal(visits, schedule.visits(5, loop))
            assert set(visits) <= set(range(5))
        else:
            assert schedule.beta(loop) == schedule.beta(loop) > 0.0


@given(st.integers(1, 30), st.integers(0, 5), st.integers(0, 9))
def test_cyclic_and_shuffled_visit_every_factor_once(count, loop, start):
    for order in (Cyclic(), Cyclic(start), Shuffled(start)):
        assert sorted(order.visits(count, loop)) == list(range(count))
    assert Cyclic(start).visits(count, loop)[0] == start % count
    assert np.array_equal(Cyclic().visits(count, loop), np.arange(count))


def test_shuffled_draws_anew_every_loop_and_repeats_with_its_seed():
    a, b = (Shuffled(1).visits(50, loop) for loop in (0, 1))
    assert not np.array_equal(a, b)
    assert np.array_equal(a, Shuffled(1).visits(50, 0))
    assert not np.array_equal(a, Shuffled(2).visits(50, 0))
    assert not np.array_equal(Shuffled(0).visits(50, 1), Shuffled(1).visits(50, 0))


def test_given_may_leave_out_and_repeat():
    assert Given((2, 0, 2)).visits(3, 5).tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ((0, 3), r"indices in 0\.\.2, got 0\.\.3"),
        ((-1,), r"indices in 0\.\.2, got -1\.\.-1"),
        ((0.5,), r"whole numbers, at least one, got \(0\.5,\)"),
        ((), r"whole numbers, at least one, got \(\)"),
        (((0, 1),), "whole numbers, at least one"),
    ],
)
def test_indices_that_are_none_are_refused(indices, message):
    with pytest.raises(ValueError, match=f"order must hold {message}"):
        Given(indices).visits(3, 0)


def test_steps_hold_their_last_value():
    assert [Steps((0.1, 0.5, 1.0)).beta(loop) for loop in range(5)] == [0.1, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("values", [(0.0,), (1.0, -1.0), (np.nan,), (np.inf,), ("hot",), (None,), ((1.0,),), (True,)])
def test_temperatures_that_cannot_be_are_refused(values):
    with pytest.raises(ValueError, match="beta must be positive and finite, got"):
        Steps(values)


@pytest.mark.parametrize("values", [(), "hot", "2", None, np.zeros((2, 0)), True, object()])
def test_what_is_no_schedule_of_temperatures_is_refused(values):
    for build in (Steps, resolve_beta):
        with pytest.raises(ValueError, match="beta must be"):
            build(values)


@given(st.floats(0.01, 1.0), st.floats(1.0, 100.0), st.integers(2, 20))
def test_annealing_goes_from_first_to_last_by_a_constant_ratio(first, last, loops):
    betas = np.array([Annealing(first, last, loops).beta(loop) for loop in range(loops + 2)])
    assert betas[0] == pytest.approx(first, rel=ROUNDING)
    assert betas[loops - 1 :] == pytest.approx([last] * 3, rel=ROUNDING)
    assert np.diff(np.log(betas[:loops])) == pytest.approx(np.log(last / first) / (loops - 1), abs=1e3 * ROUNDING)
    assert betas[loops - 1] == betas[loops]  # exactly, so that the end is seen


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        *(({name: wrong}, f"{name} must be positive and finite") for name in ("first", "last") for wrong in WRONG),
        *(({"loops": wrong}, "loops must be a whole number of at least 2") for wrong in (*WRONG, 1, 2.5)),
    ],
)
def test_annealing_that_cannot_be_is_refused(kwargs, message):
    with pytest.raises(ValueError, match=f"{message}, got"):
        Annealing(**kwargs)


@pytest.mark.parametrize("wrong", [None, "x", 0.5, np.inf, True])
def test_starts_and_seeds_that_are_no_whole_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="start must be a whole number, got"):
        Cyclic(wrong)
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0, got"):
        Shuffled(wrong)
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0, got"):
        resolve_order("shuffled", seed=wrong)


class Foreign:
    """An order and a temperature of one's own, right in the first loop only."""

    def __init__(self, later):
        self.later = later


class ForeignOrder(Foreign):
    def visits(self, count, loop):
        return self.later if loop else np.arange(count)


class ForeignTemperature(Foreign):
    def beta(self, loop):
        return self.later if loop else 1.0


@pytest.mark.parametrize("later", [[3], [-1], [], [0.5], None, [[0], [1, 2]]])
def test_every_answer_of_an_order_of_ones_own_is_checked(later):
    """Else an index out of range would reach compiled code."""
    order = resolve_order(ForeignOrder(later))
    assert order.visits(3, 0).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="order must hold"):
        order.visits(3, 1)


@pytest.mark.parametrize("later", WRONG)
def test_every_answer_of_a_temperature_of_ones_own_is_checked(later):
    temperature = resolve_beta(ForeignTemperature(later))
    assert temperature.beta(0) == 1.0
    with pytest.raises(ValueError, match="beta must be positive and finite, got"):
        temperature.beta(1)


@given(st.lists(st.sampled_from([0.5, 1.0]), min_size=1, max_size=6), st.integers(0, 8), st.integers(1, 10))
def test_a_temperature_is_final_where_no_later_loop_has_another(values, loop, loops):
    for temperature in (Steps(values), Annealing(0.5, values[-1], loops=max(2, len(values)))):
        wanted = len({temperature.beta(later) for later in (loop, *range(loop + 1, loops))}) == 1
        assert temperature.is_final(loop, loops) == wanted
        foreign = ForeignTemperature(1.0)
        foreign.beta = temperature.beta
        assert resolve_beta(foreign).is_final(loop, loops) == wanted


def test_to_know_that_needs_no_look_at_loops_without_number():
    for temperature in (Steps((2.0, 1.0)), Annealing(loops=5)):
        assert not temperature.is_final(0, 10**30)
        assert temperature.is_final(5, 10**30)


def test_names_numbers_and_values_become_schedules():
    assert resolve_order("cyclic") == Cyclic()
    assert resolve_order("shuffled", seed=4) == Shuffled(4)
    assert resolve_order([2, 1]) == resolve_order(np.array([2, 1])) == Given((2, 1))
    order = Cyclic(3)
    assert resolve_order(order) is order
    assert resolve_beta(2) == resolve_beta(np.float32(2.0)) == Steps((2.0,))
    assert resolve_beta([1, 2]) == resolve_beta(np.array([1.0, 2.0])) == Steps((1.0, 2.0))
    annealing = Annealing()
    assert resolve_beta(annealing) is annealing


@pytest.mark.parametrize("order", ["random", None, 3])
def test_an_unknown_order_is_refused(order):
    with pytest.raises(
        ValueError, match=f"order must be 'cyclic', 'shuffled', indices or an order object, got {order!r}"
    ):
        resolve_order(order)


def test_ragged_indices_are_refused():
    with pytest.raises(ValueError, match="order must hold whole numbers, at least one, got"):
        resolve_order([[0], [1, 2]])
