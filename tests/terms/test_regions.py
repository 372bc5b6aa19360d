"""Structured effects of regions are differences between neighbours, scaled; the level is the intercept's."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from cavity.terms import Neighbours

RING = {"a": ["b", "e"], "b": ["c"], "c": ["d"], "d": ["e"], "e": []}
ISLANDS = {**RING, "m": ["n"], "n": ["o"], "z": []}


def learn(graph, frame=None, **options):
    frame = {"r": ["a", "b"]} if frame is None else frame
    return Neighbours("r", graph, **options).learn(frame, np.ones(2))


def covariance(learned):
    """Covariance of the structured effects of all regions."""
    structure = learned.parts[0].structure
    precision = np.zeros((structure.width, structure.width))
    precision[structure.left, structure.right] = structure.entries(np.zeros(1))
    precision += np.triu(precision, 1).T
    rows = learned.columns({"r": list(learned.regions)}).toarray()[:, : structure.width]
    return rows @ np.linalg.inv(precision) @ rows.T


def laplacian(learned, edges):
    place = {name: k for k, name in enumerate(learned.regions)}
    found = np.zeros((len(place), len(place)))
    for a, b in edges:
        i, j = place[a], place[b]
        found[[i, j], [i, j]] += 1.0
        found[[i, j], [j, i]] -= 1.0
    return found


def test_relative_to_their_mean_effects_are_an_intrinsic_autoregression_of_unit_variance():
    learned = learn(RING)
    edges = [(a, b) for a, others in RING.items() for b in others]
    wanted = np.linalg.pinv(laplacian(learned, edges))
    wanted /= np.mean(np.diagonal(wanted))
    centre = np.eye(5) - 0.2
    np.testing.assert_allclose(centre @ covariance(learned) @ centre, wanted, atol=1e-12)


def test_parts_of_a_graph_are_scaled_for_themselves_and_have_levels():
    learned = learn(ISLANDS)
    cov = covariance(learned)
    own = [learned.regions.index(one) for one in ("m", "n", "o")]
    block = cov[np.ix_(own, own)]
    assert np.mean(block) == pytest.approx(1.0)  # the variance of the level
    centre = np.eye(3) - 1.0 / 3.0
    assert np.mean(np.diagonal(centre @ block @ centre)) == pytest.approx(1.0)
    alone = learned.regions.index("z")
    assert cov[alone, alone] == pytest.approx(1.0)
    others = np.delete(np.arange(9), own)
    np.testing.assert_allclose(cov[np.ix_(own, others)], 0.0, atol=1e-12)


@pytest.mark.parametrize("form", ["pairs", "dense", "sparse", "frame"])
def test_graphs_of_any_form_are_the_same(form):
    one = learn(RING)
    edges = [(a, b) for a, others in RING.items() for b in others]
    graph, options = edges, {}
    if form != "pairs":
        graph = -laplacian(one, edges)
        np.fill_diagonal(graph, 0.0)
        options = {"regions": one.regions} if form != "frame" else {}
        graph = sparse.csr_array(graph) if form == "sparse" else graph
        graph = pd.DataFrame(graph, one.regions, one.regions) if form == "frame" else graph
    other = learn(graph, **options)
    assert other.regions == one.regions
    np.testing.assert_allclose(covariance(other), covariance(one))


def test_rows_of_a_matrix_are_counted_from_zero():
    learned = learn(np.ones((3, 3)), {"r": np.array([0, 2])})
    assert learned.regions == ("0", "1", "2")
    assert learned.names[-1] == "neighbours(r)[2, unstructured]"


def test_every_region_has_an_unstructured_effect():
    learned = learn(ISLANDS)
    made = learned.columns({"r": ["z", "c"]}).toarray()[:, learned.width :]
    np.testing.assert_array_equal(made, np.eye(9)[[learned.regions.index("z"), learned.regions.index("c")]])
    assert learned.parts[1].structure is None
    assert len(learned.names) == sum(part.width for part in learned.parts) == made.shape[1] + learned.width
    assert "" not in learned.names


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"a": ["c"]}, "1 regions of the data are not in its graph, such as 'b': there are 'a', 'c'"),
        ({"a": [], "b": []}, "no region of its graph has a neighbour"),
        (["ab"], "must be a mapping, pairs of regions or a matrix, got 'ab'"),
        (np.ones((2, 3)), "must be square"),
        (np.array([[0.0, 1.0], [0.0, 0.0]]), "must be symmetric"),
        (-np.ones((2, 2)), "without negative entries"),
    ],
)
def test_graphs_that_do_not_fit_are_named(graph, message):
    with pytest.raises(ValueError, match=message):
        learn(graph)
