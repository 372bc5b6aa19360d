"""Files keep models to the last bit, run no code, and are refused as soon as anything about them is wrong."""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from estimator_cases import (
    Broken,
    SquaredHinge,
    assert_same_model,
    classifier,
    gaussian_regressor,
    line,
    product_classifier,
    regressor,
    state_of,
    three_classes,
    two_classes,
    unsettled,
)
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import cavity
from cavity.estimators import load, save
from cavity.losses import Huber, Logistic
from cavity.tables import Table


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.cavity"


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Bytes of a file, and the model in it."""
    path = tmp_path_factory.mktemp("files") / "model.cavity"
    model = classifier().fit(*two_classes())
    save(model, path)
    return path.read_bytes(), model


def through_file(model, path, **options):
    save(model, path)
    return load(path, **options)


MODELS = {
    "classifier by default": lambda: (cavity.EPClassifier(random_state=0), two_classes()),
    "regressor by default": lambda: (cavity.EPRegressor(random_state=0), line()),
    "two classes": lambda: (classifier(), two_classes()),
    "three": lambda: (
        classifier(class_weight={"ash": 2.0}, prior_variance=[1.0, 2.0, 3.0, 4.0]),
        three_classes(),
    ),
    "one against the rest": lambda: (classifier(loss="hinge"), three_classes()),
    "a product of Gaussians": lambda: (product_classifier(), two_classes()),
    "a noise scale": lambda: (regressor(loss="huber"), line()),
    "a random state": lambda: (
        gaussian_regressor(loss=Huber(1.0, 0.5), random_state=np.random.RandomState(0)),
        line(),
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


# There and back.


def assert_same_state(found, wanted):
    """Compare attributes by their types and to the last bit, those that are derived from others apart."""
    ours, theirs = found.__getstate__(), wanted.__getstate__()
    assert list(ours) == list(theirs)
    assert pickle.dumps(pickle.loads(pickle.dumps(ours))) == pickle.dumps(pickle.loads(pickle.dumps(theirs)))


@every_model
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_models_come_back_to_the_last_bit(name, method, path):
    model, (X, y) = MODELS[name]()
    first = {"classes": np.unique(y)} if hasattr(model, "class_weight") and method == "partial_fit" else {}
    with unsettled():
        getattr(model, method)(X, y, **first)
    again = through_file(model, path)
    assert type(again) is type(model)
    assert_same_model(again, model)
    for attribute in ("coef_", "coef_std_", "intercept_", "intercept_std_", "prior_variance_"):
        np.testing.assert_array_equal(getattr(again, attribute), getattr(model, attribute))
    assert (again.log_evidence_, again.n_iter_, again.status_) == (model.log_evidence_, model.n_iter_, model.status_)
    assert again.trace_ == model.trace_
    assert repr({**again.get_params(), "random_state": 0}) == repr({**model.get_params(), "random_state": 0})
    assert type(again.random_state) is type(model.random_state)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(again.classes_, model.classes_)
        assert again.classes_.dtype == model.classes_.dtype
    else:
        np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))


@every_model
def test_streams_go_on_after_a_file_as_if_there_had_been_none(name, path):
    model, (X, y) = MODELS[name]()
    first = {"classes": np.unique(y)} if hasattr(model, "class_weight") else {}
    with unsettled():
        model.partial_fit(X[:40], y[:40], **first)
        again = through_file(model, path)
        for one in (again, model):
            one.partial_fit(X[40:57], y[40:57], forget=0.1)
        assert_same_model(again, model)
        assert (again.trace_, again.status_) == (model.trace_, model.status_)
        assert_same_model(through_file(again, path), model)


@pytest.mark.parametrize(
    "labels",
    [["ash", "elm"], np.array(["ash", "elm"], dtype=object), [-1, 3], [False, True], [1.0, 2.0]],
    ids=["words", "objects", "integers", "booleans", "numbers"],
)
def test_labels_keep_their_types(labels, path):
    X, y = two_classes()
    model = classifier().fit(X, np.asarray(labels)[y])
    again = through_file(model, path)
    assert again.classes_.dtype == model.classes_.dtype
    assert [type(one) for one in again.classes_.tolist()] == [type(one) for one in model.classes_.tolist()]
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_sparse_posteriors_columns_groups_and_levels_come_back(path):
    pd = pytest.importorskip("pandas")
    X, y = two_classes()
    of_csr = cavity.EPRegressor(covariance="sparse").fit(sparse.csr_array(X), X[:, 0] + y)
    assert_same_model(through_file(of_csr, path), of_csr)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(shop=np.where(y > 0, "u", "v"), size=y + 1)
    frame = frame.astype({"size": "category"})
    model = cavity.EPClassifier(prior_groups={"few": ["a", "b"]}).fit(frame, y)
    again = through_file(model, path)
    assert again.categories_ == model.categories_
    assert again.feature_names_in_.tolist() == list(frame.columns)
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))


def test_models_of_tables_come_back(path, tmp_path):
    X, y = two_classes()
    rows = "\n".join(
        f"{a},{'' if k % 5 == 0 else b},{'uv'[c]},{c}" for k, (a, b, c) in enumerate(zip(*X.T[:2], y, strict=True))
    )
    (tmp_path / "rows.csv").write_text("a,b,shop,y\n" + rows)
    model = cavity.EPClassifier().fit(Table(tmp_path / "rows.csv", target="y", missing="mean"))
    again, table = through_file(model, path), Table(tmp_path / "rows.csv", target="y", missing="mean")
    for found, wanted in zip(again.predict_proba(table), model.predict_proba(table), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert repr(again.preprocessing_) == repr(model.preprocessing_)


def test_a_model_that_is_not_fitted_comes_back_too(path):
    again = through_file(classifier(prior_variance=3.0), path)
    assert again.get_params() == classifier(prior_variance=3.0).get_params()
    assert not hasattr(again, "coef_")
    again.fit(*two_classes())


def test_rejected_updates_are_kept_on_record(path):
    X, y = two_classes()
    model = classifier(loss=Broken()).partial_fit(X, y, [0, 1])
    with unsettled():
        model.partial_fit(np.full((1, 4), 1e8), [1])
    again = through_file(model, path, trusted=[Broken])
    assert again.trace_ == model.trace_
    assert again.trace_.refused == 1
    assert again.partial_fit(X, y).trace_.refused == 1


def test_pipelines_come_back_with_the_model_in_them(path):
    pd = pytest.importorskip("pandas")
    X, y = two_classes()
    scaled = make_pipeline(SimpleImputer(), StandardScaler(), FunctionTransformer(np.tanh), classifier()).fit(X, y)
    np.testing.assert_array_equal(through_file(scaled, path).predict_proba(X), scaled.predict_proba(X))
    texts = ["red apple", "green pear", "red cherry", "green apple"] * 3
    words = make_pipeline(TfidfVectorizer(stop_words=["pear"]), classifier()).fit(texts, [0, 1, 0, 1] * 3)
    np.testing.assert_array_equal(through_file(words, path).predict_proba(texts), words.predict_proba(texts))
    frame = pd.DataFrame(X, columns=list("abcd")).assign(shop=np.where(y > 0, "u", "v"))
    by_column = ColumnTransformer([("levels", OneHotEncoder(), ["shop"]), ("rest", StandardScaler(), slice(0, 2))])
    mixed = make_pipeline(by_column, VotingClassifier([("a", classifier()), ("b", classifier())])).fit(frame, y)
    np.testing.assert_array_equal(through_file(mixed, path).predict(frame), mixed.predict(frame))
    near = KNeighborsClassifier(2, algorithm="brute").fit(sparse.csr_array(X), y)
    np.testing.assert_array_equal(through_file(near, path).predict(X), near.predict(X))


def test_equal_models_give_equal_files_and_the_library_offers_both_at_its_door(path, content):
    assert (cavity.save, cavity.load) == (save, load)
    cavity.save(content[1], str(path))
    assert path.read_bytes() == content[0]


# Trust.


class Plain:
    """A loss that keeps its strength as an attribute."""

    targets = "signs"

    def __init__(self, strength):
        self.strength = strength

    def value(self, y, z):
        return SquaredHinge(self.strength).value(y, z)

    def derivatives(self, y, z):
        return SquaredHinge(self.strength).derivatives(y, z)


@pytest.mark.parametrize("loss", [SquaredHinge(2.0), Plain(2.0)], ids=lambda loss: type(loss).__name__)
def test_a_loss_of_ones_own_is_loaded_only_if_it_is_passed(loss, path):
    X, y = two_classes()
    model, kind = classifier(loss=loss).fit(X, y), type(loss)
    save(model, path)
    for trusted in ([], [Broken]):
        with pytest.raises(
            ValueError, match=rf"not trusted: {kind.__module__}:{kind.__name__}.*trusted=\[{kind.__name__}\]"
        ):
            load(path, trusted=trusted)
    again = load(path, trusted=[kind])
    assert_same_model(again, model)
    assert again.loss.strength == 2.0
    for names in (["estimator_cases.SquaredHinge"], "SquaredHinge"):
        with pytest.raises(TypeError, match=r"list of classes or functions, as \[MyLoss\]"):
            load(path, trusted=names)


@pytest.mark.parametrize("name", ["os:system", "sklearn.utils:Bunch", "sklearn.datasets:clear_data_home", "numpy:save"])
@pytest.mark.parametrize("kind", ["name", "object"])
def test_nothing_else_that_a_file_names_is_looked_up(kind, name, path):
    save(StandardScaler().fit(np.eye(2)), path)
    forge(path, lambda model: model["fields"].update(with_mean={"type": kind, "class": name, "fields": {}}))
    refused(path, f"not trusted: {name}")


class Mischief:
    """What a pickle would run."""

    done = False

    def __reduce__(self):
        return setattr, (Mischief, "done", True)


def test_a_pickle_is_refused_and_not_run(path):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Mischief(), protocol=protocol))
        with pytest.raises(ValueError, match="not a model written by cavity"):
            load(path)
    path.write_bytes(pickle.dumps(classifier().fit(*two_classes())))
    with pytest.raises(ValueError, match="a pickle, which can run code"):
        load(path)
    save(StandardScaler().fit(np.eye(2)), path)
    out = io.BytesIO()
    np.save(out, np.array([Mischief()], dtype=object), allow_pickle=True)
    forge(path, lambda model: None, {"0.npy": out.getvalue()})
    refused(path, "the dtype object")
    assert not Mischief.done


class Text(str):
    """Text, and more."""

    __slots__ = ()


def test_what_files_cannot_hold_is_not_saved(path):
    for thing in (None, {"coef": 1.0}, cavity.EPClassifier, Logistic()):
        with pytest.raises(TypeError, match="model must be an estimator"):
            save(thing, path)
    trees = RandomForestClassifier(2).fit(*two_classes())
    for thing in (trees, classifier(loss=Text("hinge")), classifier(loss=2j), classifier(loss=np.random.default_rng())):
        with pytest.raises(TypeError, match=r"a file of a model cannot hold a .*; joblib"):
            save(thing, path)
    assert not path.exists()


# Damage.


def assert_refused_or_same(path, model):
    try:
        found = load(path)
    except ValueError:
        return True
    assert_same_model(found, model)
    assert found.get_params() == model.get_params()
    return False


def test_a_truncated_file_is_refused(content, path):
    data, _ = content
    for length in (*range(8), 30, 200, len(data) // 4, len(data) // 2, len(data) - 30, len(data) - 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"damaged or truncated|not (a model|one) written by cavity"):
            load(path)


@pytest.mark.parametrize("mask", [0x01, 0x08, 0x80, 0xFF])
def test_every_flipped_byte_gives_an_error_or_the_same_model(mask, content, path):
    """All bytes of the archive's own tables, where damage can take many forms, and a sample of the rest."""
    data, model = content
    for changed in (data + b"more", b"more" + data, data[:500] + data[501:], data[:500] + b"x" + data[500:], data * 2):
        path.write_bytes(changed)
        assert_refused_or_same(path, model)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos, tables = archive.infolist(), archive.start_dir
    inside = np.zeros(len(data), dtype=bool)
    for info in infos:
        (extra,) = struct.unpack_from("<H", data, info.header_offset + 28)
        begin = info.header_offset + 30 + len(info.filename) + extra
        inside[begin : begin + info.file_size] = True
    rng = np.random.default_rng(mask)
    heads = rng.choice(np.flatnonzero(~inside[:tables]), 150, replace=False)
    ends = rng.choice(np.arange(tables, len(data)), 300, replace=False)
    for place in (*heads, *ends, *rng.choice(np.flatnonzero(inside), 100)):
        damaged = bytearray(data)
        damaged[place] ^= mask
        path.write_bytes(damaged)
        # What may pass are dates, attributes and versions of tools in the tables, which carry no model.
        assert assert_refused_or_same(path, model) or not inside[place]


def test_another_format_and_another_zip_are_refused(content, path):
    data, _ = content
    for header in ({"format": 1, "cavity": "0.1"}, {"format": 99, "cavity": "9.0"}, {"format": "2"}, {}):
        path.write_bytes(zipped({**unzipped(data), "cavity.json": json.dumps(header)}))
        version = header.get("cavity", "unknown")
        with pytest.raises(ValueError, match=rf"by cavity {version} in a format that cavity .* does not know: open it"):
            load(path)
    path.write_bytes(zipped({"cavity.json": '{"format": 1, "cavity": "0.1.0"}', "model.skops": b"PK"}))
    with pytest.raises(ValueError, match=r"by cavity 0\.1\.0 in a format .* fit the model again"):
        load(path)
    for members in ({"readme.txt": b"hello"}, {"cavity.json": b"[]"}, {"cavity.json": b"null", "0.npy": b""}):
        path.write_bytes(zipped(members))
        with pytest.raises(ValueError, match="is a zip archive, but not one written by cavity"):
            load(path)


def test_absent_files_and_folders_give_the_errors_of_the_system(tmp_path):
    for there in (lambda: load(tmp_path / "absent"), lambda: save(classifier(), tmp_path / "no" / "folder" / "model")):
        with pytest.raises(FileNotFoundError):
            there()
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
    with pytest.raises(OSError, match="directory"):
        save(classifier(), tmp_path)
    assert os.listdir(tmp_path) == []


# Forgery.


def zipped(members, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return out.getvalue()


def unzipped(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def forge(path, change, others=()):
    """Let ``change`` alter the model in a file, and exchange members of the archive."""
    members = unzipped(path.read_bytes())
    header = json.loads(members["cavity.json"])
    change(header["model"])
    path.write_bytes(zipped({**members, "cavity.json": json.dumps(header), **dict(others)}))


def refused(path, match, room=2**24, **options):
    """Load a file that is to be refused; count the memory that takes."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=match):
            load(path, **options)
        assert tracemalloc.get_traced_memory()[1] < room
    finally:
        tracemalloc.stop()


BOMB = bytes(2**26)


def test_compressed_archives_and_those_that_lie_about_sizes_are_refused_before_they_are_read(content, path):
    data, _ = content
    path.write_bytes(zipped({**unzipped(data), "0.npy": BOMB}, zipfile.ZIP_DEFLATED))
    refused(path, "compressed")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        directory = archive.start_dir
    lying = bytearray(data)
    for place in (24, 20):  # uncompressed size of the first member, and its compressed size
        struct.pack_into("<I", lying, directory + place, 2**31)
        path.write_bytes(lying)
        refused(path, "damaged")


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(2, 99999999999999)", "(3,)", "()", "(-1,)", "(-1, -2)", "'x'", "(2"]
)
@pytest.mark.parametrize("dtype", ["<f8", "|V0", "<U0", "|O"])
def test_an_array_that_is_not_as_long_as_its_header_says_is_refused(shape, dtype, content, path):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(16)
    path.write_bytes(zipped({**unzipped(content[0]), "0.npy": array}))
    refused(path, "damaged")


def test_a_few_bytes_cannot_refer_to_a_large_array_again_and_again(path):
    save(StandardScaler().fit(np.ones((2, 10**5))), path)
    forge(path, lambda model: model["fields"].update(more=[{"type": "array", "member": 0}] * 10**3))
    refused(path, "not consistent: KeyError")


def test_an_array_that_nothing_refers_to_and_other_members_are_refused(content, path):
    members = unzipped(content[0])
    for name, match in ((f"{len(members) - 1}.npy", "1 arrays that nothing refers to"), ("more", "numbered arrays")):
        path.write_bytes(zipped({**members, name: members["0.npy"]}))
        refused(path, match)


@pytest.mark.parametrize("border", [0, 12_000], ids=["fill-in", "a wide border"])
def test_a_sparse_matrix_whose_factor_would_be_too_large_is_refused_before_it_is_made(border, path):
    """Two megabytes of random entries: their factor has 7,000² numbers, and a dense border of all columns 12,000²."""
    rng, d = np.random.default_rng(0), 12_000
    X = sparse.csr_array((np.ones(400), rng.integers(0, d, 400), np.arange(401)), shape=(400, d))
    options = {"covariance": "sparse", "prior_variance": 1.0, "scale": 1.0, "fit_intercept": False}
    model = cavity.EPRegressor(**options).fit(X, rng.normal(size=400))
    places = np.sort(rng.integers(0, d, (2, 6 * d)), axis=0)
    met = sparse.coo_array((np.full(6 * d, 1e-6), places), shape=(d, d))
    information = sparse.csc_array(sparse.triu(met, 1) + sparse.eye_array(d))
    known = replace(state_of(model).sites[0], information=information, border=np.arange(border))
    model._state = replace(state_of(model), sites=(known,))
    save(model, path)
    refused(path, r"not consistent: the factor of a sparse .* more than 2e\+11 operations or 4 GB", room=2**29)


TREES = {
    "no type": lambda model: model.pop("type"),
    "an unknown type": lambda model: model.update(type="code"),
    "a type that is no text": lambda model: model.update(type=[]),
    "no class": lambda model: model.pop("class"),
    "no estimator": lambda model: model.update({"class": "Huber", "fields": {"threshold": 1.0, "scale": 1.0}}),
    "a class of its own making": lambda model: model.update({"class": "MyClass"}),
    "fields as a list": lambda model: model.update(fields=[]),
    "a field less": lambda model: model["fields"].pop("tol"),
    "an array that is not there": lambda model: model["fields"]["_state"]["fields"]["columns"]["fields"]["unit"].update(
        member=99
    ),
    "a field too many": lambda model: model["fields"]["_state"]["fields"]["plan"]["fields"].update(more=1),
    "a random state": lambda model: model["fields"].update(
        random_state={"type": "RandomState", "parts": ["MT19937", [0] * 624, -(10**6), 0, 0.0]}
    ),
    "a longer random state": lambda model: model["fields"].update(
        random_state={"type": "RandomState", "parts": ["MT19937", [0] * 9999, 9000, 0, 0.0]}
    ),
    "an index beyond": lambda model: model["fields"].update(
        loss={"type": "csr_array", "parts": [[1.0], [7], [0, 1], [1, 2]]}
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_a_forged_tree_is_refused(name, content, path):
    path.write_bytes(content[0])
    forge(path, TREES[name])
    refused(path, r"damaged|not consistent|not trusted")


@pytest.mark.parametrize(
    "header", [b"", b"{", b"\xff", b"[" * 10**5, b'{"a":' * 10**5, b'{"format": 3}', b'{"format": 3, "model": 5}']
)
def test_a_header_that_is_none_is_refused(header, content, path):
    path.write_bytes(zipped({**unzipped(content[0]), "cavity.json": header}))
    refused(path, "damaged|not consistent")


def test_parts_that_do_not_fit_are_refused_wherever_the_model_is(path):
    bad = classifier().fit(*two_classes())
    known = replace(state_of(bad).sites[0], information=np.triu(np.ones((5, 5))))
    bad._state = replace(state_of(bad), sites=(known,))
    for model in (bad, make_pipeline(StandardScaler(), make_pipeline(bad)), VotingClassifier([("a", bad)])):
        save(model, path)
        refused(path, r"model\.cavity contains a model that is not consistent: .*; take another copy")


def test_lack_of_memory_is_no_damage(content, path, monkeypatch):
    path.write_bytes(content[0])

    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(np, "ndarray", fail)
    with pytest.raises(MemoryError):
        load(path)


# Whole or not at all.


@pytest.mark.parametrize("what", ["write", "sync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(what, content, path, monkeypatch):
    path.write_bytes(content[0])

    def fail(*args, **kwargs):
        raise OSError("the disk is full")

    place = {"write": (zipfile.ZipFile, "open"), "sync": (os, "fsync"), "replace": (Path, "replace")}[what]
    monkeypatch.setattr(*place, fail)
    with pytest.raises(OSError, match="the disk is full"):
        save(classifier(prior_variance=7.0), path)
    monkeypatch.undo()
    assert path.read_bytes() == content[0]
    assert os.listdir(path.parent) == [path.name]


def test_a_new_file_has_the_mode_of_the_process_and_an_old_one_keeps_its_own(path):
    before = os.umask(0o027)
    try:
        save(classifier(), path)
        assert path.stat().st_mode & 0o777 == 0o640
        for mode in (0o600, 0o444, 0o666):
            path.chmod(mode)
            save(classifier(prior_variance=3.0), path)
            assert path.stat().st_mode & 0o777 == mode
            assert load(path).prior_variance == 3.0
    finally:
        os.umask(before)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    folder, link = tmp_path / "models", tmp_path / "current"
    folder.mkdir()
    link.symlink_to("models/first")
    for variance in (2.0, 3.0):  # a target that is not there yet, and one that is
        save(classifier(prior_variance=variance), link)
        assert link.is_symlink()
        assert load(folder / "first").prior_variance == variance
    assert os.listdir(folder) == ["first"]
    assert sorted(os.listdir(tmp_path)) == ["current", "models"]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_after(path, monkeypatch):
    events, sync, rename = [], os.fsync, Path.replace

    def note_sync(number):
        events.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        sync(number)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", lambda *a: events.append("name") or rename(*a))
    save(classifier(), path)
    assert events == ["file", "name", "folder"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file"):
        save(classifier(), fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
