"""Estimators with a formula or terms: numbers of others, parity of inputs, reports, files, streams, words."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from estimator_cases import state_of
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import cavity
from cavity import EPClassifier, EPRegressor
from cavity.tables import Table
from cavity.terms import Effects, Linear, Smooth
from reference.reml import dummies, reml


def sleepers(levels=18, rows=10, seed=0):
    """A table as of people's reaction times on days without sleep."""
    rng = np.random.default_rng(seed)
    who, day = np.repeat(np.arange(levels), rows), np.tile(np.arange(rows), levels)
    own = rng.multivariate_normal([0.0, 0.0], [[600.0, 40.0], [40.0, 36.0]], levels)
    y = 250.0 + 10.0 * day + own[who, 0] + own[who, 1] * day + 25.0 * rng.normal(size=who.size)
    return pd.DataFrame({"who": [f"w{k}" for k in who], "day": day, "y": y})


def patients(n=600, seed=1):
    """A table with labels, counts, a curve and nested groups."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50.0, 10.0, n),
            "bmi": rng.uniform(18.0, 35.0, n),
            "clinic": rng.choice(list("abcdef"), n),
            "ward": rng.choice(["1", "2", "3"], n),
            "days": rng.uniform(1.0, 5.0, n),
        }
    )
    own = dict(zip("abcdef", 0.7 * rng.normal(size=6), strict=True))
    z = 0.03 * (frame["age"] - 50.0) + np.sin(frame["bmi"] / 3.0) + frame["clinic"].map(own)
    frame["sick"] = np.where(z + rng.logistic(size=n) > 0.0, "yes", "no")
    frame["visits"] = rng.poisson(frame["days"] * np.exp(0.5 * z))
    frame["kind"] = rng.choice(["x", "y", "z"], n)
    return frame


SLOPES = "y ~ day + (day | who)"
CARE = "sick ~ age + s(bmi) + (1 | clinic/ward)"


@pytest.fixture(scope="module")
def slopes():
    frame = sleepers()
    return frame, EPRegressor(formula=SLOPES).fit(frame)


@pytest.fixture(scope="module")
def care():
    frame = patients()
    return frame, EPClassifier(formula=CARE).fit(frame)


def test_components_are_those_of_restricted_maximum_likelihood():
    frame = sleepers()
    model = EPRegressor(formula="y ~ day + (day || who)").fit(frame)
    who, day = dummies(np.unique(frame["who"], return_inverse=True)[1]), frame["day"].to_numpy(float)
    y = frame["y"].to_numpy()
    exact = reml(y, np.column_stack([np.ones(180), day]), [who, who * day[:, None]])
    found = model.components_
    mine = [found["1 | who"]["sd"], found["day | who"]["sd"], found["residual"]["scale"]]
    np.testing.assert_allclose(mine, np.sqrt([*exact.variances, exact.noise]), rtol=2e-3)
    line = np.polynomial.polynomial.polyfit(day, y, 1)  # balanced: the fixed effects are those of least squares
    np.testing.assert_allclose([model.intercept_, model.coef_[0]], line, rtol=1e-3)


def test_a_formula_terms_and_tables_of_any_kind_are_one_model(slopes):
    frame, model = slopes
    others = [
        EPRegressor(formula=SLOPES).fit(pl.from_pandas(frame)),
        EPRegressor(formula="~ day + (day | who)").fit(frame, frame["y"]),
        EPRegressor(terms=[Linear("day"), Effects("who", "day")]).fit(frame, frame["y"]),
        EPRegressor(formula=SLOPES).fit({name: frame[name].to_numpy() for name in frame}),
        clone(model).fit(frame),
        pickle.loads(pickle.dumps(model)),
        make_pipeline(FunctionTransformer(lambda X: X), EPRegressor(formula=SLOPES)).fit(frame)[-1],
    ]
    for other in others:
        np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other.predict(frame[:5]), model.predict(frame[:5]), rtol=1e-9)


def test_a_sparse_precision_gives_the_same():
    frame = sleepers()
    dense, thin = (EPRegressor(formula=SLOPES, covariance=c).fit(frame) for c in ("full", "sparse"))
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(thin.coef_std_, dense.coef_std_, rtol=1e-3)


@pytest.mark.parametrize("make", ["regressor", "classifier"])
def test_files_keep_terms(make, slopes, care, tmp_path):
    frame, model = slopes if make == "regressor" else care
    cavity.save(model, tmp_path / "model.cavity")
    loaded = cavity.load(tmp_path / "model.cavity")
    np.testing.assert_array_equal(loaded.coef_, model.coef_)
    np.testing.assert_array_equal(loaded.predict(frame[:9]), model.predict(frame[:9]))
    assert loaded.components_ == model.components_


def test_files_keep_the_structures_of_a_formula(tmp_path):
    rng, n = np.random.default_rng(2), 300
    A = rng.normal(size=(8, 20))
    kin = pd.DataFrame(A @ A.T / 20.0, index=list("abcdefgh"))
    frame = pd.DataFrame({"animal": rng.choice(list("abcdefgh"), n), "place": rng.choice(list("pqr"), n)})
    given = {"kin": kin, "map": [("p", "q"), ("q", "r")]}
    model = EPRegressor(formula="~ known(animal, kin) + neighbours(place, map)", structures=given)
    model.fit(frame, rng.normal(size=n))
    cavity.save(model, tmp_path / "model.cavity")
    loaded = cavity.load(tmp_path / "model.cavity")
    np.testing.assert_array_equal(loaded.coef_, model.coef_)
    pd.testing.assert_frame_equal(loaded.structures["kin"], kin, check_names=False)
    assert model.effects("place").shape[0] == 3
    assert set(model.effects("animal").index.get_level_values("level")) == set("abcdefgh")


def test_effects_of_a_new_level_have_the_variance_of_the_prior(slopes):
    _, model = slopes
    new = pd.DataFrame({"who": ["someone"], "day": [0]})
    mean, std = model.predict(new, return_std="mean")
    without = model.predict(new, exclude=["(day | who)"], return_std="mean")
    assert mean[0] == pytest.approx(without[0][0], rel=1e-6)
    state = state_of(model)
    settings = state.posterior.settings  # the variance is uncertain, and averaged over
    each = [state.design.terms.components(one.prior, model.y_scale_)["1 + day | who"]["sd(1)"] for one in settings]
    variance = np.average(np.square(each), weights=[one.weight for one in settings])
    assert std[0] ** 2 - without[1][0] ** 2 == pytest.approx(variance, rel=1e-6)
    assert variance > model.components_["1 + day | who"]["sd(1)"] ** 2


def test_excluded_terms_leave_the_rest(care):
    frame, model = care
    term = "(1 | clinic:ward)"
    some = frame[["age", "bmi", "clinic"]][:7]
    z = model.decision_function(some, return_std=True, exclude=[term])[0]
    whole = model.decision_function(frame[:7], return_std=True)[0]
    own = model.effects(term)["mean"]
    levels = frame["clinic"][:7] + ":" + frame["ward"][:7]
    effects = [own[("clinic:ward", level)] for level in levels]
    np.testing.assert_allclose(z + effects, whole, rtol=1e-7, atol=1e-9)
    for name in ("predict", "predict_proba", "predict_log_proba"):
        assert len(getattr(model, name)(some, exclude=[term])) == 7
    with pytest.raises(ValueError, match=r"exclude names the term '\(1 \| clinics\)'; did you mean"):
        model.predict(frame, exclude=["(1 | clinics)"])


def test_parts_of_the_predictor_add_up(care):
    """Fixed intercept, centred straight line and curve, and effects: the linear predictor."""
    frame, model = care
    rows = frame[:6].reset_index(drop=True)
    age = model.partial_effect("age", rows["age"])["mean"].to_numpy()
    curve = model.partial_effect("s(bmi)", rows["bmi"])["mean"].to_numpy()
    effects = model.effects("clinic")["mean"]
    wards = model.effects("clinic:ward")["mean"]
    own = [
        effects[("clinic", c)] + wards[("clinic:ward", f"{c}:{w}")] for c, w in zip(rows.clinic, rows.ward, strict=True)
    ]
    rest = model.decision_function(rows, return_std=True)[0] - age - curve - own
    np.testing.assert_allclose(rest, rest[0], rtol=1e-7)


def test_a_summary_has_blocks(slopes, care):
    _, model = slopes
    table = model.summary()
    assert list(table.loc["fixed"].index) == ["intercept", "day"]
    components = table.loc["components"]
    assert list(components.index) == [
        "sd(1) of 1 + day | who",
        "sd(day) of 1 + day | who",
        "correlation(1, day) of 1 + day | who",
        "scale of the noise",
    ]
    assert np.all(components["lower 95%"] < components["mean"])
    assert np.all(components["mean"] < components["upper 95%"])
    assert components.loc["scale of the noise", "lower 95%"] < 25.0 < components.loc["scale of the noise", "upper 95%"]
    assert len(model.summary(levels=True).loc["levels"]) == 36
    _, model = care
    table = model.summary()
    assert 2.0 < table.loc[("smooths", "s(bmi)"), "edf"] < 12.0
    assert table.loc[("fixed", "age"), "exp(mean)"] == pytest.approx(np.exp(model.coef_[0, 0]))


def test_contrasts_cross_terms(slopes):
    _, model = slopes
    names = {"(1 | who)[w0]": 1.0, "(1 | who)[w1]": -1.0, "day": 2.0}
    effects = model.effects("who")["mean"]
    wanted = effects[("1 | who", "w0")] - effects[("1 | who", "w1")] + 2.0 * model.coef_[0]
    assert model.contrast(names)["mean"].iloc[0] == pytest.approx(wanted)


def test_offsets_of_a_formula_and_of_a_call_add_up():
    frame = patients()
    formula = "visits ~ age + s(bmi) + (1 | clinic)"
    log_days = np.log(frame["days"])
    given = EPRegressor("poisson", formula=formula).fit(frame, offset=log_days)
    inside = EPRegressor("poisson", formula=formula + " + offset(log(days))").fit(frame)
    both = EPRegressor("poisson", formula=formula + " + offset(0.5 * log(days))").fit(frame, offset=0.5 * log_days)
    for other in (inside, both):
        np.testing.assert_allclose(other.coef_, given.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(inside.predict(frame), given.predict(frame, offset=log_days), rtol=1e-9)


def test_weights_count_rows():
    frame = patients(n=200)
    twice = pd.concat([frame, frame[:50]], ignore_index=True)
    weights = np.where(np.arange(200) < 50, 2.0, 1.0)
    a = EPClassifier(formula=CARE, tol=1e-4).fit(frame, sample_weight=weights)
    b = EPClassifier(formula=CARE, tol=1e-4).fit(twice)
    np.testing.assert_allclose(a.predict_proba(frame), b.predict_proba(frame), atol=2e-3)


def test_several_classes_share_the_terms():
    frame = patients()
    model = EPClassifier(formula="kind ~ age + (1 | clinic)").fit(frame)
    probabilities = model.predict_proba(frame[:5])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    effects = model.effects("clinic")["mean"]
    np.testing.assert_allclose(effects.groupby("level").sum(), 0.0, atol=1e-9)  # classes sum to zero
    assert list(model.summary().loc["x"].loc["fixed"].index) == ["intercept", "age"]


def test_classes_against_the_rest_have_components_each():
    frame = patients()
    model = EPClassifier("hinge", formula="kind ~ s(age) + (1 | clinic)").fit(frame)
    assert set(model.components_) == {"x", "y", "z"}
    table = model.summary()
    for name in "xyz":
        found = table.loc[(name, "components", "sd of 1 | clinic"), "mean"]
        assert found == pytest.approx(model.components_[name]["1 | clinic"]["sd"])
        assert table.loc[(name, "smooths", "s(age)"), "edf"] >= 0.0


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "quantile", "poisson", "negative_binomial", "gamma"])
def test_all_losses_take_terms(loss):
    frame = patients()
    y = frame["visits"] + (0.5 if loss == "gamma" else 0.0)
    model = EPRegressor(loss, formula="~ age + s(bmi) + (1 | clinic)").fit(frame, y)
    assert model.status_.is_success
    assert np.all(np.isfinite(model.predict(frame, return_std=True)))


@pytest.mark.parametrize("formula", ["~ age + (1 | clinic)", "~ age + (age | clinic)"])
@pytest.mark.parametrize("make", [EPRegressor, EPClassifier])
def test_a_stream_is_near_a_fit(make, formula):
    frame = patients()
    y = (frame["sick"] == "yes").to_numpy(float)
    stream, first = make(formula=formula), {"classes": [0.0, 1.0]} if make is EPClassifier else {}
    for i in range(0, 600, 200):
        stream.partial_fit(frame[i : i + 200], y[i : i + 200], **first)
    whole = make(formula=formula).fit(frame, y)
    assert np.max(np.abs(stream.coef_ - whole.coef_) / whole.coef_std_) < 0.3
    halves = [make(formula=formula).fit(frame[i::2], y[i::2]) for i in (0, 1)]
    merged = halves[0].merge(halves[1])
    assert np.max(np.abs(merged.coef_ - whole.coef_) / whole.coef_std_) < 0.5
    other = make(formula=formula).fit(frame[frame["clinic"] != "a"], y[frame["clinic"] != "a"])
    with pytest.raises(ValueError, match="different terms, levels or knots"):
        halves[0].merge(other)


def test_levels_that_are_yet_to_come_are_named_before_a_stream():
    frame = patients(n=120)
    first, later = frame[frame["clinic"] < "d"], frame[frame["clinic"] >= "d"]
    with pytest.raises(ValueError, match=r"\(1 \| clinic\) has levels, or times, that were not in the first rows"):
        EPRegressor(formula="~ (1 | clinic)").partial_fit(first, first["age"]).partial_fit(later, later["age"])
    frame["clinic"] = frame["clinic"].astype("category")
    first, later = frame[frame["clinic"].astype(str) < "d"], frame[frame["clinic"].astype(str) >= "d"]
    stream = EPRegressor(formula="~ (1 | clinic)").partial_fit(first, first["age"]).partial_fit(later, later["age"])
    whole = EPRegressor(formula="~ (1 | clinic)").fit(frame, frame["age"])
    np.testing.assert_allclose(stream.coef_, whole.coef_, atol=0.1 * np.max(whole.coef_std_))


def test_plots_have_an_axis_per_term(care):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    _, model = care
    axes = model.plot_terms()
    assert [ax.get_title() for ax in axes.ravel()] == ["s(bmi)", "(1 | clinic)", "(1 | clinic:ward)"]


def test_curves_of_levels():
    frame = patients()
    model = EPRegressor(terms=[Smooth("bmi", by="kind")]).fit(frame, frame["age"])
    with pytest.raises(ValueError, match=r"s\(bmi, by=kind\) needs a grid, a table of bmi, kind"):
        model.partial_effect("bmi")
    grid = pd.DataFrame({"bmi": [20.0, 25.0], "kind": ["x", "y"]})
    assert list(model.partial_effect("bmi", grid)["kind"]) == ["x", "y"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formula": "~ age + (1 | clinics)"}, r"\(1 \| clinics\) needs a column 'clinics'.*did you mean 'clinic'"),
        ({"formula": "~ agee"}, "no column 'agee': did you mean 'age'"),
        ({"formula": "~ age + known(clinic, kin)"}, "nothing is called 'kin'"),
        ({"formula": "~ log(age"}, r"has a bracket '\('"),
        ({"formula": "~ age", "terms": [Linear("age")]}, "exclude each other"),
        ({"terms": Linear("age")}, "terms must be a list of terms"),
        ({"terms": ["age"]}, "terms must hold terms"),
        ({"formula": "~ age", "prior_variance": 1.0}, "a term has a variance of its own"),
        ({"formula": "~ age", "fit_intercept": False}, r"write 0 \+ in the formula"),
        ({"formula": "~ age", "structures": [1]}, "structures must be a dict"),
        ({"formula": "~ age + (age | clinic)", "covariance": "diagonal"}, "terms need all correlations"),
    ],
)
def test_what_is_wrong_is_named(options, words):
    frame = patients(n=60)
    with pytest.raises(ValueError, match=words):
        EPClassifier(**options).fit(frame, frame["sick"])


def test_other_wrong_calls_are_named(slopes):
    frame, model = slopes
    with pytest.raises(ValueError, match="terms need a table with named columns"):
        EPRegressor(formula=SLOPES).fit(sparse.csr_array(np.eye(3)), [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="names no target"):
        EPRegressor(formula="~ day").fit(frame)
    with pytest.raises(ValueError, match="no effects of 'whom'; did you mean 'who'"):
        model.effects("whom")
    with pytest.raises(ValueError, match="there is no term 'dey'; did you mean 'day'"):
        model.partial_effect("dey", [1.0])
    plain = EPRegressor().fit(frame[["day"]], frame["y"])
    with pytest.raises(AttributeError, match="this model has no terms"):
        plain.effects("who")
    with pytest.raises(ValueError, match="this model has none"):
        plain.predict(frame[["day"]], exclude=["day"])
    with pytest.raises(ValueError, match="scale='linear' is for columns"):
        EPRegressor("normal", formula=SLOPES, scale="linear").fit(frame)


def test_tables_and_frames_are_one_model(tmp_path):
    frame = patients(n=200)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame[:80].to_parquet(tmp_path / "b.parquet")
    frame[80:].to_parquet(tmp_path / "c.parquet")
    wanted = EPClassifier(formula=CARE).fit(frame)
    for files in (tmp_path / "a.csv", [tmp_path / "b.parquet", tmp_path / "c.parquet"]):
        table = Table(files, target="sick")
        model = EPClassifier(formula=CARE).fit(table)
        np.testing.assert_allclose(model.coef_, wanted.coef_, rtol=1e-9, atol=1e-12)
        found = np.concatenate(list(model.predict_proba(Table(files))))
        np.testing.assert_allclose(found, wanted.predict_proba(frame), rtol=1e-9)
        assert model.score(table) == wanted.score(frame, frame["sick"])
    weighted = Table(tmp_path / "a.csv", target="visits", weight="days", drop=["sick", "kind"])
    formula = "~ age + (1 | clinic)"
    model = EPRegressor("poisson", formula=formula).fit(weighted)
    same = EPRegressor("poisson", formula=formula).fit(frame, frame["visits"], sample_weight=frame["days"])
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="no column 'kind'"):
        EPRegressor(formula="~ age + kind").fit(weighted)


def test_a_collection_on_a_cluster_is_refused():
    dask = pytest.importorskip("cavity.dask")
    arrays = pytest.importorskip("dask.array")
    X, y = arrays.ones((20, 2), chunks=10), arrays.ones(20, chunks=10)
    with pytest.raises(ValueError, match="a formula or terms need rows in memory or a Table"):
        dask.fit(EPRegressor(formula="~ x"), X, y)
