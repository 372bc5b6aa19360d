"""Every command does what the library does, on files."""

import dataclasses
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import typer
from cli_cases import people, refused, run, started
from sklearn.metrics import log_loss

import cavity
from cavity.cli.commands import LOSSES, app
from cavity.tables import Table

UNUSED = ("--drop", "spent", "--drop", "visits", "--drop", "share")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files, a classifier and a regressor that were fitted once."""
    place = tmp_path_factory.mktemp("files")
    people().to_csv(place / "train.csv", index=False)
    people(seed=1).to_parquet(place / "test.parquet")
    run("fit", place / "train.csv", "--target", "income", "--model", place / "labels.cavity", *UNUSED)
    options = ("--target", "spent", "--drop", "visits", "--drop", "income", "--weight", "share")
    run("fit", place / "train.csv", "--model", place / "numbers.cavity", *options)
    return place


def test_fit_gives_the_same_model_as_the_library(folder):
    table = Table(folder / "train.csv", target="income", drop=["spent", "visits", "share"])
    expected = cavity.EPClassifier().fit(table)
    assert np.array_equal(cavity.load(folder / "labels.cavity").coef_, expected.coef_)


def test_parameters_reach_the_estimator(folder, tmp_path):
    given = ("--loss", "hinge", "--prior-variance", "25", "--max-iter", "50", "--covariance", "full")
    more = (
        "--no-fit-intercept",
        "--tol",
        "0.1",
        "--class-weight",
        '{"high": 2.0}',
        "--prior-mean",
        "[0.5, 0, 0, 0, 0, 0]",
    )
    model = tmp_path / "m.cavity"
    run("fit", folder / "train.csv", "--target", "income", "--model", model, *UNUSED, *given, *more)
    found = cavity.load(model).get_params()
    expected = {
        "loss": "hinge",
        "prior_variance": 25.0,
        "max_iter": 50,
        "covariance": "full",
        "fit_intercept": False,
        "tol": 0.1,
        "class_weight": {"high": 2.0},
        "prior_mean": [0.5, 0, 0, 0, 0, 0],
        "verbose": None,
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("target", "extra", "kind"),
    [
        ("income", (), "EPClassifier"),
        ("spent", (), "EPRegressor"),
        ("share", (), "EPClassifier"),
        ("share", ("--task", "regress"), "EPRegressor"),
        ("visits", ("--loss", "poisson"), "EPRegressor"),
        ("share", ("--loss", "hinge"), "EPClassifier"),
    ],
)
def test_the_target_decides_the_estimator_unless_the_loss_or_the_user_does(tmp_path, target, extra, kind):
    people(60).to_csv(tmp_path / "a.csv", index=False)
    others = [a for name in ("income", "spent", "visits", "share") if name != target for a in ("--drop", name)]
    result = run("fit", tmp_path / "a.csv", "--target", target, "--model", tmp_path / "m", *others, *extra)
    assert type(cavity.load(tmp_path / "m")).__name__ == kind
    assert ("fitting an " + kind in result.stderr) == ("--task" not in extra)


def test_progress_has_a_line_per_loop_and_can_be_silenced(folder, tmp_path):
    arguments = ("fit", folder / "train.csv", "--target", "income", "--model", tmp_path / "m", *UNUSED)
    shown = run(*arguments).stderr.splitlines()
    loops = cavity.load(tmp_path / "m").n_iter_
    assert shown[1].startswith("read 300 distinct rows in ")
    assert [line.partition(":")[0] for line in shown[2:]] == [f"loop {k + 1}" for k in range(loops)]
    assert all("rows/s, changed by" in line for line in shown[2:])
    assert run(*arguments, "--no-verbose").stderr == ""


def test_trouble_is_exit_code_one_and_the_model_is_written(folder, tmp_path):
    arguments = ("--target", "income", "--model", tmp_path / "m", "--max-iter", "2", "--tol", "0", *UNUSED)
    result = run("fit", folder / "train.csv", *arguments, code=1)
    assert "cavity: warning: EP ended with trouble: not converged" in result.stderr
    assert cavity.load(tmp_path / "m").n_iter_ == 2


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npy"])
def test_predictions_of_labels_are_those_of_the_library(folder, tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    told = run("predict", folder / "labels.cavity", folder / "test.parquet", "--out", path).stdout
    assert told == f"300 rows to {path}: label, p_high, p_low\n"
    found = _read(path)
    model, frame = cavity.load(folder / "labels.cavity"), people(seed=1)
    assert np.allclose(found[["p_high", "p_low"]], model.predict_proba(frame), rtol=1e-14)
    assert np.array_equal(found["label"], model.predict(frame))
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


def test_predictions_of_numbers_have_deviations_and_quantiles(folder, tmp_path):
    quantiles = ("--quantile", "0.05", "--quantile", "0.95")
    run("predict", folder / "numbers.cavity", folder / "test.parquet", "--out", tmp_path / "p.parquet", *quantiles)
    found, frame = _read(tmp_path / "p.parquet"), people(seed=1)
    model = cavity.load(folder / "numbers.cavity")
    mean, sd = model.predict(frame, return_std=True)
    expected = np.column_stack([mean, sd, model.predict(frame, quantile=[0.05, 0.95])])
    assert found.columns.tolist() == ["mean", "sd", "q0.05", "q0.95"]
    assert np.allclose(found, expected, rtol=1e-12)


def test_scores_of_labels(folder):
    model, frame = cavity.load(folder / "labels.cavity"), people(seed=1)
    found = _measures(run("score", folder / "labels.cavity", folder / "test.parquet"))
    expected = log_loss(frame["income"], model.predict_proba(frame))
    assert found == {
        "rows": "300",
        "log loss": f"{expected:.4f}",
        "accuracy": f"{model.score(frame, frame['income']):.4f}",
    }


def test_scores_of_numbers_are_weighted_as_the_fit_was(folder):
    model, frame = cavity.load(folder / "numbers.cavity"), people(seed=1)
    found = _measures(run("score", folder / "numbers.cavity", folder / "test.parquet"))
    y, w = frame["spent"].to_numpy(), frame["share"].to_numpy()
    mean, sd = model.predict(frame, return_std=True)
    low, high = model.predict(frame, quantile=[0.05, 0.95]).T
    density = -0.5 * ((y - mean) / sd) ** 2 - np.log(sd * np.sqrt(2.0 * np.pi))
    assert found["R²"] == f"{model.score(frame, y, w):.4f}"
    assert found["root mean square error"] == f"{np.sqrt(np.average((y - mean) ** 2, weights=w)):.4g}"
    assert found["mean log density"] == f"{np.average(density, weights=w):.4f}"
    assert found["in 90 % intervals"] == f"{np.average((low <= y) & (y <= high), weights=w):.4f}"


@pytest.mark.parametrize("loss", ["absolute", "quantile", "poisson", "gamma", "negative_binomial"])
def test_every_loss_can_be_scored(tmp_path, loss):
    frame = people(80).assign(visits=lambda f: f["visits"] + (loss == "gamma"))
    frame[["age", "visits"]].to_csv(tmp_path / "a.csv", index=False)
    run("fit", tmp_path / "a.csv", "--target", "visits", "--model", tmp_path / "m", "--loss", loss)
    found = _measures(run("score", tmp_path / "m", tmp_path / "a.csv"))
    model = cavity.load(tmp_path / "m")
    assert found["D²"] == f"{model.score(frame[['age']], frame['visits']):.4f}"
    assert ("mean log density" in found) == (loss != "quantile")


def test_inspect_shows_coefficients_and_variance_components(folder):
    shown = run("inspect", folder / "labels.cavity").stdout
    for part in ("EPClassifier(loss='logistic') of 'income'", "high, low", "full covariance", "converged", "town=Ulm"):
        assert part in shown
    assert shown.index("town=(unseen)") < shown.index("variance component") < shown.rindex("town")


def test_inspect_fits_into_a_narrow_terminal(folder):
    shown = run("inspect", folder / "labels.cavity", width=50).stdout
    table = shown[shown.index("coefficient") :].splitlines()
    assert table[0].split() == ["coefficient", "mean", "std", "P(>", "0)"]
    assert all(len(line) <= 50 for line in table)


def test_names_from_files_do_not_reach_the_terminal_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    levels = ["a\x1b]0;b\x07", "c\nd", ":smile:"]
    frame = pd.DataFrame({"x\x1b[31m": rng.normal(size=60), "kind": rng.choice(levels, 60)})
    frame["y"] = rng.choice(["no\x1b[2J", "yes\u202e"], 60)
    frame.to_parquet(tmp_path / "a.parquet")
    shown = [
        run("fit", tmp_path / "a.parquet", "--target", "y", "--model", tmp_path / "m").output,
        run("inspect", tmp_path / "m").output,
        run("predict", tmp_path / "m", tmp_path / "a.parquet", "--out", tmp_path / "p.parquet").output,
        run("inspect", tmp_path / "m", "--html", tmp_path / "m.html").output,
        (tmp_path / "m.html").read_text(encoding="utf-8"),
    ]
    for text in shown:
        assert all(c.isprintable() or c == "\n" for c in text)
    for part in (r"no\x1b[2J, yes\u202e", r"x\x1b[31m ", r"kind=a\x1b]0;b\x07 ", r"kind=c\nd ", "kind=:smile: "):
        assert part in shown[1]
    frame.assign(kind="\x1b[2J").to_parquet(tmp_path / "b.parquet")
    line = refused("update", tmp_path / "m", tmp_path / "b.parquet")
    assert line.isprintable()


def test_missing_text_has_a_level_of_its_own_if_asked(tmp_path):
    frame = people(120)[["age", "town", "income"]].assign(age=lambda f: f["age"].where(f["age"] > 25.0))
    frame.loc[::5, "town"] = None
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    given = ("--target", "income", "--model", tmp_path / "m")
    line = refused("fit", tmp_path / "a.csv", *given, "--drop", "age")
    assert "a.csv, row 1, column 'town': the value is missing; fill it, or use missing='mean' (--missing mean)" in line
    for name in ("a.csv", "a.parquet"):
        run("fit", tmp_path / name, *given, "--missing", "mean")
        model = cavity.load(tmp_path / "m")
        assert model.categories_["town"] == ["(missing)", "Bonn", "Köln", "Ulm"]
        run("predict", tmp_path / "m", tmp_path / "a.csv", "--out", tmp_path / "p.csv")
        filled = frame.assign(town=frame["town"].fillna("(missing)"))
        assert np.allclose(_read(tmp_path / "p.csv")["p_high"], model.predict_proba(filled)[:, 0])
        run("update", tmp_path / "m", tmp_path / "a.csv")
    people(120)[["age", "town", "income"]].to_csv(tmp_path / "whole.csv", index=False)
    run("fit", tmp_path / "whole.csv", *given)
    frame.assign(age=40.0).to_parquet(tmp_path / "a.parquet")
    line = refused("update", tmp_path / "m", tmp_path / "a.parquet")
    assert "row 1, column 'town': a missing level was not in the rows of the fit" in line


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_level_or_label_may_be_called_na(tmp_path, suffix):
    frame = people(120)[["age", "town", "income"]].replace({"Ulm": "NA", "low": "NA"})
    path = tmp_path / f"a.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    run("fit", path, "--target", "income", "--model", tmp_path / "m")
    model = cavity.load(tmp_path / "m")
    assert model.categories_["town"] == ["Bonn", "Köln", "NA"]
    assert model.classes_.tolist() == ["NA", "high"]
    assert _measures(run("score", tmp_path / "m", path))["accuracy"] == f"{model.score(frame, frame['income']):.4f}"


def test_inspect_shortens_long_tables(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(90, 41)), columns=[f"c{k}" for k in range(41)])
    frame.to_csv(tmp_path / "a.csv", index=False)
    run("fit", tmp_path / "a.csv", "--target", "c40", "--model", tmp_path / "m")
    short, long = (run("inspect", tmp_path / "m", *extra).stdout for extra in ((), ("--all",)))
    assert "30 of 42, the largest against their standard deviation; --all shows all" in short
    starts = [line.split(" ")[0] for line in short.splitlines()]
    assert starts.index("30") - starts.index("coefficient") - 1 == 30
    assert all(f"\nc{k} " in long for k in range(40))


def test_the_page_of_a_model_stands_alone(folder, tmp_path):
    run("inspect", folder / "labels.cavity", "--html", tmp_path / "m.html")
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert "town=Köln" in page
    assert page.count("<svg") == 2 + 4 + 2 + 1  # numbers, levels, variance components, and the course of the fit
    assert not any(word in page for word in ("http:", "https:", "src=", "href="))


def test_update_takes_rows_in_as_partial_fit_does(folder, tmp_path):
    path, frame = tmp_path / "new.cavity", people(seed=1)
    before = (folder / "labels.cavity").read_bytes()
    run("update", folder / "labels.cavity", folder / "test.parquet", "--halflife", "500", "--out", path)
    expected = cavity.load(folder / "labels.cavity").partial_fit(frame, frame["income"], halflife=500.0)
    assert np.allclose(cavity.load(path).coef_, expected.coef_, rtol=1e-10)
    assert (folder / "labels.cavity").read_bytes() == before


def test_update_replaces_the_model_at_the_end_only(folder, tmp_path):
    model, bad = tmp_path / "m.cavity", tmp_path / "bad.csv"
    model.write_bytes((folder / "numbers.cavity").read_bytes())
    people(20).assign(town=["Bonn"] * 19 + ["Rom"]).to_csv(bad, index=False)
    line = refused("update", model, folder / "test.parquet", bad)
    assert f"{bad}, row 20, column 'town': the level 'Rom'" in line
    assert model.read_bytes() == (folder / "numbers.cavity").read_bytes()
    run("update", model, folder / "test.parquet")
    assert cavity.load(model).n_samples_seen_ > cavity.load(folder / "numbers.cavity").n_samples_seen_


def test_the_target_is_needed_and_columns_are_named(folder, tmp_path):
    people(20)[["age", "income"]].to_csv(tmp_path / "a.csv", index=False)
    line = refused("fit", tmp_path / "a.csv", "--model", tmp_path / "n")
    assert line == f"cavity: --target is needed, the column to be predicted: {tmp_path / 'a.csv'} has 'age', 'income'"


def test_a_label_that_is_missing_is_named(folder, tmp_path):
    frame = people(40)
    frame.loc[7, "income"] = None
    frame.to_csv(tmp_path / "a.csv", index=False)
    for command in ("score", "update"):
        line = refused(command, folder / "labels.cavity", tmp_path / "a.csv")
        assert line.endswith("a.csv, row 8, column 'income': the label is missing; fill it, or leave the row out")


def test_the_example_can_be_fitted_and_scored(tmp_path):
    told = run("example", "--folder", tmp_path).stdout
    assert told.splitlines()[1] == f"{tmp_path / 'test.csv'}: 22,605 rows of 17 columns"
    assert refused("example", "--folder", tmp_path).endswith("train.csv exists; name another folder by --folder")
    run("fit", tmp_path / "train.csv", "--target", "deposit", "--model", tmp_path / "m", "--no-verbose")
    assert float(_measures(run("score", tmp_path / "m", tmp_path / "test.csv"))["accuracy"]) > 0.89


@pytest.mark.parametrize("command", ["fit", "example", "predict", "score", "inspect", "update"])
def test_help_shows_an_example(command):
    shown = run(command, "--help").stdout
    assert f"Example:\n\n  cavity {command} " in shown


def options_of_fit():
    return {option.name: option for option in typer.main.get_command(app).commands["fit"].params}


def test_every_option_has_a_help_text_of_its_own():
    texts = [option.help for option in options_of_fit().values()]
    assert all(texts)
    assert len(set(texts)) == len(texts)
    shown = " ".join(run("fit", "--help").stdout.split())
    assert "--weight COLUMN Column of weights: a row of weight w counts as w rows." in shown
    assert "--offset COLUMN Column of known terms of the linear predictor" in shown


def test_options_are_those_of_the_estimators_and_tell_their_defaults():
    shown, options = run("fit", "--help").stdout, options_of_fit()
    for estimator in (cavity.EPClassifier(), cavity.EPRegressor()):
        for name, default in estimator.get_params().items():
            if name in ("terms", "structures", "errors", "calibration", "loo_refit"):  # not of the command
                continue
            assert f"--{name.replace('_', '-')}" in shown, name
            if default is not None:
                assert f"(default {str(default).lower()})" in options[name].help


def test_options_are_those_of_a_table():
    names = {"categories": "category"}
    for field in dataclasses.fields(Table):
        if field.init and field.name != "paths":
            assert names.get(field.name, field.name) in options_of_fit()


@pytest.mark.parametrize(("task", "loss"), [(task, loss) for task, names in LOSSES.items() for loss in names])
def test_a_loss_decides_the_task(tmp_path, task, loss):
    frame = people(60)[["age", "income", "visits"]].assign(visits=lambda f: f["visits"] + 1)
    frame.to_csv(tmp_path / "a.csv", index=False)
    drop, target = ("visits", "income") if task == "classify" else ("income", "visits")
    given = ("--target", target, "--drop", drop, "--model", tmp_path / "m", "--loss", loss)
    told = run("fit", tmp_path / "a.csv", *given).stderr
    kind = "EPClassifier" if task == "classify" else "EPRegressor"
    assert f"cavity: fitting an {kind}: it has the loss {loss!r}" in told


def test_the_command_runs_on_its_own_and_tells_its_version():
    process = started("--version")
    assert process.communicate(timeout=300) == (f"cavity {cavity.__version__}\n", "")
    assert process.returncode == 0


def test_what_is_missing_is_named():
    code = "import sys; sys.modules['typer'] = None\nimport cavity.cli\ncavity.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "cavity: the command needs typer: pip install 'cavity[cli]'\n"


def _read(path):
    if path.suffix == ".npy":
        return pd.DataFrame(np.load(path))
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


def _measures(result):
    pairs = (line.rsplit("  ", 1) for line in result.stdout.splitlines())
    return {name.strip(): value.strip() for name, value in pairs}


def test_a_formula_is_fitted_inspected_scored_and_updated(tmp_path):
    frame = people(300)
    frame.to_csv(tmp_path / "a.csv", index=False)
    model = tmp_path / "m.cavity"
    formula = "spent ~ s(age) + height + (1 | town)"
    assert "EPRegressor of 'spent'" in run("fit", tmp_path / "a.csv", "--formula", formula, "--model", model).stdout
    shown = run("inspect", model, width=120).stdout
    assert "sd of 1 | town" in shown
    assert "height" in shown
    run("inspect", model, "--html", tmp_path / "m.html")
    assert "sd of s(age)" in (tmp_path / "m.html").read_text(encoding="utf-8")
    frame[:5].drop(columns=["spent", "visits"]).to_csv(tmp_path / "new.csv", index=False)
    run("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    wanted = cavity.EPRegressor(formula=formula).fit(frame)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["mean"], wanted.predict(frame[:5]), rtol=1e-7)
    assert "in 90 % intervals" in run("score", model, tmp_path / "a.csv").stdout
    run("update", model, tmp_path / "a.csv", "--out", tmp_path / "more.cavity")
    assert cavity.load(tmp_path / "more.cavity").n_samples_seen_ == 600
    told = refused("fit", tmp_path / "a.csv", "--formula", "spent ~ heights", "--model", tmp_path / "other")
    assert "did you mean 'height'?" in told
