import numpy as np

from reference.timing import best_of, best_times


def test_times_are_the_best_of_a_few():
    seconds, repeats = best_of(lambda: None, budget=np.inf)
    assert repeats == 5
    assert 0.0 <= seconds < np.inf
    assert best_of(lambda: sum(range(1000)), budget=0.0)[1] == 1


def test_the_first_round_is_not_counted():
    calls = []
    assert best_times({"work": lambda: calls.append(1)}, repeats=3)["work"] < np.inf
    assert len(calls) == 4
