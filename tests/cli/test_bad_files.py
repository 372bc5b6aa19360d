"""Bad input is exit code 2, one line that names file, row and column, and nothing written."""

import os

import numpy as np
import pandas as pd
import pytest
from cli_cases import people, refused, run

import cavity
from cavity.estimators import parameters

GOOD = "age,town,income\n30,Ulm,low\n50,Bonn,high\n41,Ulm,high\n33,Bonn,low\n"


@pytest.fixture
def folder(tmp_path):
    """A good file, an empty folder for what commands write, and a model."""
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "out").mkdir()
    return tmp_path


def written(folder):
    return [path.name for path in (folder / "out").iterdir()]


def fit(folder, *files, target="income", extra=()):
    places = ("--model", folder / "out" / "m.cavity", "--checkpoint", folder / "out" / "run.ckpt")
    line = refused("fit", *files, "--target", target, *places, *extra)
    assert written(folder) == []
    return line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "{} is empty"),
        ("age,town,income\n", "{} has columns but no rows"),
        ("age,town\n30,Ulm\n", "{} has no column 'income'; it has 'age', 'town'"),
        (GOOD + "1,2,3,4\n", "{}, row 5"),
        (GOOD + "1,2\n", "{}, row 5"),
        (GOOD.replace("33", ""), "{}, row 4, column 'age': the number is missing"),
        (GOOD.replace("low", "high"), "column 'income': all labels are 'high'; two are needed"),
        ("age,age,income\n1,2,low\n", "{}, column 'age': two columns have this name"),
    ],
    ids=["empty", "no rows", "no target", "long row", "short row", "missing number", "one class", "same name twice"],
)
def test_a_bad_file_is_refused(folder, text, told):
    path = folder / "bad.csv"
    path.write_text(text)
    assert told.format(path) in fit(folder, path)


def test_text_in_a_column_of_numbers_is_named_by_its_row(folder):
    path, rows = folder / "bad.csv", 400_000  # beyond what columns are judged by
    lines = ["30,Ulm,high", "31,Bonn,low"] * (rows // 2)
    lines[-2] = "thirty,Ulm,high"
    path.write_text("\n".join(["age,town,income", *lines]))
    assert f"{path}, row {rows - 1}, column 'age'" in fit(folder, path)


def many(folder, **columns):
    """Write 100 rows of a number, a label and further columns."""
    frame = people(100)[["age", "income"]].assign(**columns)
    frame.to_csv(folder / "many.csv", index=False)
    return folder / "many.csv"


def test_a_word_in_a_column_of_numbers_makes_no_categories(folder):
    numbers = [*map(str, range(57)), "foo", *map(str, range(42))]
    path = many(folder, size=numbers)
    line = fit(folder, path)
    assert line == (
        f"cavity: {path}, row 58, column 'size': 'foo' is not a number, but 99 of 100 cells of the column are; correct "
        "it, leave it empty if it is missing, or declare the column a category (categories=['size'], --category size)"
    )
    assert f"{path}, row 58, column 'size': 'foo' is not a number" in fit(folder, path, target="size")
    assert f"{path}, row 58, column 'size': targets must be numbers" in fit(
        folder, path, target="size", extra=("--task", "regress", "--drop", "income")
    )
    assert "row 58, column 'size': weight must be a number, got 'foo'" in fit(folder, path, extra=("--weight", "size"))
    good = many(folder, size=1.0).rename(folder / "whole.csv")
    run("fit", good, "--target", "income", "--offset", "size", "--model", folder / "m.cavity", "--no-verbose")
    for cell, told in (("foo", "offset must be a number, got 'foo'"), ("", "the number is missing; fill it")):
        path = many(folder, size=["1"] * 57 + [cell] + ["2"] * 42)
        line = refused("predict", folder / "m.cavity", path, "--out", folder / "out" / "p.csv")
        assert f"{path}, row 58, column 'size': {told}" in line
    path = many(folder, size=numbers)
    given = ("--target", "income", "--model", folder / "m.cavity", "--category", "size", "--no-verbose")
    run("fit", path, *given)
    assert len(cavity.load(folder / "m.cavity").categories_["size"]) == 58


def test_a_column_with_a_level_per_row_is_dropped_or_declared(folder):
    path = many(folder, name=[f"person {k}" for k in range(100)])
    line = fit(folder, path)
    assert f"{path}, column 'name': 100 different texts in 100 rows" in line
    assert line.endswith(
        "drop the column (drop=['name'], --drop name), or declare it a category (categories=['name'], --category name)"
    )
    assert "100 different texts in 100 rows" in fit(folder, path, target="name")
    for extra in (("--drop", "name"), ("--category", "name")):
        run("fit", path, "--target", "income", "--model", folder / "m.cavity", "--no-verbose", *extra)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_make_no_categories(folder, delimiter):
    path = folder / "comma.csv"
    rows = [f"{k % 7},5{delimiter}{'low' if k % 3 else 'high'}" for k in range(100)]
    path.write_text("\n".join([f"age{delimiter}income", *rows]))
    line = fit(folder, path)
    assert f"{path}, row 1, column 'age': '0,5' is not a number, as 100 of 100 cells of the column" in line
    assert "write decimal points instead of commas" in line
    lines = [f"{k % 7},5{delimiter}{'0,5' if k % 3 else '1.234,5'}" for k in range(100)]
    path.write_text("\n".join([f"age{delimiter}income", *lines]))
    assert "row 1, column 'income': targets must be numbers, got '1.234,5'" in fit(
        folder, path, extra=("--task", "regress")
    )


@pytest.mark.parametrize("text", ["5/3/2024", "05.03.2024", "2024/3/5", "05/03/24 x", "3.5.7"])
def test_dates_in_other_orders_make_no_categories(folder, text):
    path = many(folder, day=text)
    if text[-1].isdigit() and "2024" in text:
        assert "column 'day': dates are not numbers" in fit(folder, path)
    else:
        run("fit", path, "--target", "income", "--model", folder / "m.cavity", "--no-verbose")


@pytest.mark.parametrize("text", ["2024-03-05", "2024-03-05 12:30:00", "2024-03-05T12:30:00Z"])
def test_dates_say_how_they_become_numbers(folder, text):
    line = fit(folder, many(folder, day=text))
    assert "column 'day': dates are not numbers; convert them in all files" in line
    code = line.partition("by pandas: ")[2].partition(";")[0]
    frame = pd.DataFrame({"day": [text]})
    exec(code, {"frame": frame, "pandas": pd})
    assert frame["day"][0] == pytest.approx(19787.0 + (12.5 / 24.0 if "12:30" in text else 0.0))
    assert "column 'day': dates are not numbers" in fit(folder, many(folder, day=[text] * 99 + ["later"]))


def test_files_with_different_columns_are_refused(folder):
    path = folder / "other.csv"
    path.write_text(GOOD.replace("town", "city"))
    assert f"{path} has no column 'town', which {folder / 'good.csv'} has" in fit(folder, folder / "good.csv", path)


def test_paths_that_cannot_be_read_are_refused(folder):
    assert f"{folder / 'none.csv'}: No such file or directory" in fit(folder, folder / "none.csv")
    (folder / "folder.csv").mkdir()
    assert f"{folder / 'folder.csv'}: Is a directory" in fit(folder, folder / "folder.csv")
    assert "the suffix must be one of .parquet" in fit(folder, folder / "good.xls")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read any file")
def test_a_file_without_permission_is_refused(folder):
    (folder / "good.csv").chmod(0)
    assert "Permission denied" in fit(folder, folder / "good.csv")


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (("--quantile", "0.9"), "--quantile is not an option of EPClassifier, which --task classify fits"),
        (("--loss", "cubic"), "loss must be one of 'logistic', 'hinge', 'quasi01'"),
        (("--prior-variance", "-1"), "prior_variance must be positive"),
        (("--class-weight", "{high"), "is not a list or object in JSON"),
        (("--memory", "much"), "--memory must be a number of bytes such as 512MB"),
        (("--drop", "size"), "has no column 'size'"),
        (("--task", "guess"), "--task must be auto, classify or regress, got 'guess'"),
        (("--every", "-1"), "every must be a finite number of at least 0"),
    ],
)
def test_a_bad_option_is_refused(folder, extra, told):
    assert told in fit(folder, folder / "good.csv", extra=extra)


@pytest.mark.parametrize(
    ("extra", "needed"),
    [
        (("--quantile", "0.9"), "--loss quantile"),
        (("--loss", "huber", "--quantile", "0.9"), "--loss quantile"),
        (("--loss", "absolute", "--epsilon", "2"), "--loss huber"),
        (("--loss", "poisson", "--scale", "2"), "a loss other than poisson"),
        (("--loss", "gamma", "--no-normalize-y"), "a loss other than poisson, negative_binomial and gamma"),
        (("--no-fit-intercept", "--intercept-prior-variance", "2"), "--fit-intercept"),
        (("--covariance", "full", "--random-state", "2"), "--covariance diagonal"),
        (("--max-iter", "1", "--tol", "0.1"), "--max-iter 2 or more"),
        (("--covariance", "diagonal"), "a --covariance other than diagonal"),
    ],
)
def test_an_option_without_an_effect_is_refused(folder, extra, needed):
    people(40)[["age", "spent"]].to_csv(folder / "a.csv", index=False)
    option = "--checkpoint" if extra[-2] == "--covariance" else extra[-2] if extra[-1][0] != "-" else extra[-1]
    option = option.replace("--no-normalize", "--normalize")
    line = fit(folder, folder / "a.csv", target="spent", extra=("--task", "regress", *extra))
    assert line == f"cavity: {option} has no effect here, it needs {needed}; leave it out"


def test_seconds_between_checkpoints_need_a_checkpoint(folder):
    given = ("--target", "income", "--model", folder / "out" / "m", "--every", "5")
    assert "--every has no effect here, it needs --checkpoint" in refused("fit", folder / "good.csv", *given)


def test_an_option_that_had_no_effect_is_told(folder):
    given = ("fit", folder / "good.csv", "--target", "income", "--model", folder / "m")
    assert "warning: --random-state had no effect" in run(*given, "--random-state", "3").stderr


def test_a_place_that_cannot_be_written_is_refused_before_any_work(folder):
    arguments = ("fit", folder / "good.csv", "--target", "income")
    assert "there is no folder" in refused(*arguments, "--model", folder / "no" / "m.cavity")
    assert "is a folder; name a file" in refused(*arguments, "--model", folder / "out")
    assert "there is no folder" in refused(*arguments, "--model", folder / "m", "--checkpoint", folder / "no" / "c")


@pytest.mark.parametrize("link", ["same", "symbolic", "hard"])
def test_an_input_is_not_overwritten_whatever_leads_to_it(folder, model, link):
    def other(path):
        place = folder / f"link{path.suffix}"
        if link == "same":
            return folder / "out" / ".." / path.name
        (place.symlink_to if link == "symbolic" else place.hardlink_to)(path)
        return place

    good = folder / "good.csv"
    place, before = other(good), (good.read_bytes(), model.read_bytes())
    given = ("fit", good, "--target", "income", "--model")
    lines = [
        refused(*given, place),
        refused(*given, folder / "m", "--checkpoint", place),
        refused("predict", model, good, "--out", place),
        refused("update", model, good, "--out", place),
        refused("inspect", model, "--html", other(model)),
        refused("predict", model, good, "--out", folder / "link.cavity" if link != "same" else model),
    ]
    for line, option in zip(lines, ("model", "checkpoint", "out", "out", "html", "out"), strict=True):
        assert f"cavity: --{option} " in line
        assert line.endswith(", which is an input; name another file")
    assert (good.read_bytes(), model.read_bytes()) == before


def test_two_outputs_are_two_files(folder):
    (folder / "link").symlink_to(folder / "m.cavity")
    for place in (folder / "m.cavity", folder / "link"):
        given = ("--target", "income", "--model", folder / "m.cavity", "--checkpoint", place)
        assert "which is the file of --model; name another" in refused("fit", folder / "good.csv", *given)


def test_a_file_that_is_no_checkpoint_is_not_removed(folder):
    path = folder / "a.txt"
    path.write_text("mine")
    arguments = ("--target", "income", "--model", folder / "m", "--checkpoint", path)
    refused("fit", folder / "good.csv", *arguments, "--covariance", "diagonal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters, "_BEARABLE", 1.0)  # columns are too many for anything else
        people(60).to_csv(folder / "long.csv", index=False)  # and rows more than columns
        told = run("fit", folder / "long.csv", *arguments).stderr
    assert "warning: --checkpoint had no effect" in told
    assert path.read_text() == "mine"


def test_a_checkpoint_of_other_data_is_refused_and_stays(folder):
    path = folder / "run.ckpt"
    path.write_bytes(b"not a checkpoint")
    arguments = ("--target", "income", "--model", folder / "out" / "m", "--checkpoint", path)
    assert f"the checkpoint {path} is damaged" in refused("fit", folder / "good.csv", *arguments)
    assert path.read_bytes() == b"not a checkpoint"
    assert written(folder) == []


@pytest.fixture
def model(folder):
    run("fit", folder / "good.csv", "--target", "income", "--model", folder / "m.cavity")
    return folder / "m.cavity"


def test_what_is_no_model_is_refused(folder):
    arguments = (folder / "good.csv", "--out", folder / "out" / "p.csv")
    assert "is not a model written by cavity.save" in refused("predict", folder / "good.csv", *arguments)
    assert "No such file" in refused("predict", folder / "none", *arguments)
    cavity.save(cavity.EPClassifier().fit([[0.0], [1.0]], [0, 1]), folder / "arrays")
    assert "holds a model of arrays" in refused("predict", folder / "arrays", *arguments)
    assert written(folder) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("town,income\nUlm,low\n", "{} has no column 'age', which the model needs"),
        ("age,town,income\nold,Ulm,low\n", "{}, row 1, column 'age': the model needs numbers, got 'old'"),
        ("age,town,income\n30,Ulm,low\n,Ulm,low\n", "{}, row 2, column 'age': the number is missing"),
        ("", "{} is empty"),
    ],
)
def test_predictions_of_a_bad_file_leave_nothing(folder, model, text, told):
    path = folder / "new.csv"
    path.write_text(text)
    line = refused("predict", model, folder / "good.csv", path, "--out", folder / "out" / "p.parquet")
    assert told.format(path) in line
    assert written(folder) == []


def test_predictions_need_a_known_suffix_a_folder_and_a_regressor_for_quantiles(folder, model):
    good = folder / "good.csv"
    assert "the suffix must be one of" in refused("predict", model, good, "--out", folder / "out" / "p.xls")
    assert "there is no folder" in refused("predict", model, good, "--out", folder / "no" / "p.csv")
    line = refused("predict", model, good, "--out", folder / "out" / "p.csv", "--quantile", "0.5")
    assert "--quantile is for regressors" in line
    assert written(folder) == []


def test_scores_name_labels_that_are_not_known(folder, model):
    path = folder / "test.csv"
    path.write_text(GOOD.replace("41,Ulm,high", "41,Ulm,middle"))
    assert f"{path}, row 3, column 'income': the label 'middle' is none of" in refused("score", model, path)
    path.write_text("age,town\n30,Ulm\n")
    assert "has no column 'income'" in refused("score", model, path)


def test_scores_name_weights_and_targets_that_are_none(folder):
    people(40).to_csv(folder / "a.csv", index=False)
    given = ("--target", "spent", "--weight", "share", "--model", folder / "r", "--drop", "income", "--drop", "visits")
    run("fit", folder / "a.csv", *given)
    people(40).assign(share=-1.0).to_csv(folder / "b.csv", index=False)
    assert "b.csv, row 1, column 'share': a weight must be" in refused("score", folder / "r", folder / "b.csv")
    people(40).assign(spent="much").to_csv(folder / "b.csv", index=False)
    line = refused("score", folder / "r", folder / "b.csv")
    assert "b.csv, row 1, column 'spent': targets must be numbers, got 'much'" in line
    people(40).assign(share=["2"] * 39 + ["two"]).to_csv(folder / "b.csv", index=False)
    line = refused("score", folder / "r", folder / "b.csv")
    assert "b.csv, row 40, column 'share': weight must be a number, got 'two'" in line
    people(40).assign(spent=np.nan).to_csv(folder / "b.csv", index=False)
    assert "b.csv, row 1, column 'spent': the number is missing" in refused("score", folder / "r", folder / "b.csv")
