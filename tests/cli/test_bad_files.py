"""Bad input is exit code 2, one line that names file, row and column, and nothing written."""

import os

import numpy as np
import pytest
from cli_cases import people, refused, run

import cavity

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
        (GOOD.replace("low", "high"), "The number of classes has to be greater than one"),
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


def test_a_place_that_cannot_be_written_is_refused_before_any_work(folder):
    arguments = ("fit", folder / "good.csv", "--target", "income")
    assert "there is no folder" in refused(*arguments, "--model", folder / "no" / "m.cavity")
    assert "is a folder; name a file" in refused(*arguments, "--model", folder / "out")
    assert "there is no folder" in refused(*arguments, "--model", folder / "m", "--checkpoint", folder / "no" / "c")


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
        ("age,town,income\nold,Ulm,low\n", "{}, column 'age': the model needs numbers, got text"),
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
    assert "b.csv, column 'spent': targets must be numbers" in refused("score", folder / "r", folder / "b.csv")
    people(40).assign(spent=np.nan).to_csv(folder / "b.csv", index=False)
    assert "b.csv, row 1, column 'spent': the number is missing" in refused("score", folder / "r", folder / "b.csv")
