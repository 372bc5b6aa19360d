"""Files that somebody forged, digest and all: refused with a ValueError, in memory of the file's own size."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cavity
from cavity.estimators import load, save

ROWS = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
SPARSE = "scipy.sparse._csr.csr_array"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.cavity"


def zipped(members, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return out.getvalue()


def unzipped(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def forge(path, change, compression=zipfile.ZIP_STORED):
    """Let ``change`` alter the members of the model in a file, and write it with a note that fits."""
    outer = unzipped(path.read_bytes())
    members = unzipped(outer["model.skops"])
    change(members)
    content, note = zipped(members, compression), json.loads(outer["cavity.json"])
    note.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    path.write_bytes(zipped({"cavity.json": json.dumps(note), "model.skops": content}))


def edit_schema(edit):
    def change(members):
        schema = json.loads(members["schema.json"])
        edit(schema)
        members["schema.json"] = json.dumps(schema).encode()

    return change


def saved_scaler(path):
    save(StandardScaler().fit(ROWS), path)


def nodes_of(state, loader):
    """All nodes of a kind in a schema."""
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    found = [state] if isinstance(state, dict) and state.get("__loader__") == loader else []
    return found + [node for part in parts for node in nodes_of(part, loader)]


def refused(path, match, room=2**24, **options):
    """Load a file that is to be refused; count the memory that takes."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=match):
            load(path, **options)
        assert tracemalloc.get_traced_memory()[1] < room
    finally:
        tracemalloc.stop()


# Size.


BOMB = bytes(2**26)


def test_a_compressed_outer_archive_is_refused_before_it_is_read(path):
    note = json.dumps({"format": 1, "size": len(BOMB), "sha256": hashlib.sha256(BOMB).hexdigest()})
    path.write_bytes(zipped({"cavity.json": note, "model.skops": BOMB}, zipfile.ZIP_DEFLATED))
    refused(path, "compressed")
    path.write_bytes(zipped({"cavity.json": BOMB, "model.skops": b""}, zipfile.ZIP_DEFLATED))
    refused(path, "compressed")


def test_a_compressed_model_is_refused_before_it_is_read(path):
    saved_scaler(path)
    forge(path, lambda members: members.update({"bomb.npy": BOMB}), zipfile.ZIP_DEFLATED)
    refused(path, "compressed")


def test_a_compressed_matrix_in_a_model_is_refused_before_it_is_read(path):
    save(KNeighborsClassifier(2, algorithm="brute").fit(sparse.csr_array(ROWS), [0, 1, 0, 1]), path)

    def change(members):
        (name,) = (name for name in members if name.endswith(".npz"))
        members[name] = zipped({**unzipped(members[name]), "data.npy": BOMB}, zipfile.ZIP_DEFLATED)

    forge(path, change)
    refused(path, "compressed")


def test_a_directory_that_lies_about_a_compressed_member_is_refused(path):
    """Every field of the directory that tells of compression says there is none; the data are deflated."""
    saved_scaler(path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        directory = archive.start_dir
    struct.pack_into("<I", data, directory + 24, 2**31)  # uncompressed size of the note
    path.write_bytes(data)
    refused(path, "damaged")
    struct.pack_into("<I", data, directory + 20, 2**31)  # and its compressed size
    path.write_bytes(data)
    refused(path, "damaged")


def test_a_long_note_and_other_members_are_refused(path):
    saved_scaler(path)
    outer = unzipped(path.read_bytes())
    path.write_bytes(zipped({**outer, "cavity.json": outer["cavity.json"] + b" " * 5000}))
    refused(path, "note has more than")
    path.write_bytes(zipped({**outer, "more": b""}))
    refused(path, "not one written by cavity")
    path.write_bytes(zipped(dict(reversed(outer.items()))))
    refused(path, "not one written by cavity")


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(2, 99999999999999)", "(3,)", "()", "(-1,)", "'x'", "(2"])
def test_an_array_that_is_not_as_long_as_its_header_says_is_refused(shape, path):
    saved_scaler(path)

    def change(members):
        name = next(name for name in members if name.endswith(".npy"))
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        members[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(16)

    forge(path, change)
    refused(path, "damaged")


def test_a_few_bytes_cannot_refer_to_a_large_node_again_and_again(path):
    """A list of two nodes of one id, in a list of two such lists, and so on: 2⁴⁰ nodes for whoever follows them."""
    saved_scaler(path)

    def nest(schema):
        def of(content, own):
            kind = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
            return {**kind, "__id__": own, "content": content}

        node = of([], 1)
        for level in range(2, 42):
            node = of([node, of([], level - 1)], level)
        schema["content"]["content"]["mean_"] = node

    forge(path, edit_schema(nest))
    refused(path, "not the same content")


def test_a_large_member_cannot_be_read_by_many_nodes(path):
    saved_scaler(path)

    def share(schema):
        arrays = nodes_of(schema, "NdArrayNode")
        for node in arrays:
            node["file"] = arrays[0]["file"]

    forge(path, edit_schema(share))
    refused(path, "two nodes of its schema read the member")


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
    model._knowledge = (replace(model._knowledge[0], information=information, border=np.arange(border)),)
    save(model, path)
    refused(path, r"not consistent: the factor of a sparse .* more than 2e\+11 operations or 4 GB", room=2**29)


def test_models_with_sparse_matrices_and_shared_arrays_come_back(path):
    model = KNeighborsClassifier(2, algorithm="brute").fit(sparse.csr_array(ROWS), [0, 1, 0, 1])
    model.again_ = [model.classes_, model.classes_, {"once more": model.classes_}]
    save(model, path)
    again = load(path, trusted=[SPARSE])
    np.testing.assert_array_equal(again.predict(ROWS), model.predict(ROWS))
    np.testing.assert_array_equal(again.again_[2]["once more"], model.classes_)


# Content.


def absent(schema):
    del schema["content"]


def a_number(schema):
    schema["content"] = 5


def a_loader_of_another_kind(schema):
    schema["__loader__"] = "NdArrayNode"


def no_loader(schema):
    schema["__loader__"] = "NoNode"


def no_class(schema):
    schema["__class__"] = "NoEstimator"


def another_class(schema):
    schema["__class__"] = "MinMaxScaler"


def no_module(schema):
    schema["__module__"] = None


def no_member(schema):
    nodes_of(schema, "NdArrayNode")[0]["file"] = "absent.npy"


def the_schema_as_an_array(schema):
    nodes_of(schema, "NdArrayNode")[0]["file"] = "schema.json"


def a_protocol_that_is_none(schema):
    schema["protocol"] = "new"


def a_list_for_a_dictionary(schema):
    schema["content"]["__loader__"] = "ListNode"


EDITS = [
    absent,
    a_number,
    a_loader_of_another_kind,
    no_loader,
    no_class,
    another_class,
    no_module,
    no_member,
    the_schema_as_an_array,
    a_protocol_that_is_none,
    a_list_for_a_dictionary,
]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_schema_gives_a_value_error(edit, path):
    saved_scaler(path)
    forge(path, edit_schema(edit))
    refused(path, r"damaged|not consistent|not trusted")


@pytest.mark.parametrize(
    "schema",
    [b"", b"[]", b"null", b"{}", b"{", b"\xff", b"[" * 10**5, b'{"protocol":' * 10**5, b'{"protocol": 1e999}'],
)
def test_a_schema_that_is_none_gives_a_value_error(schema, path):
    saved_scaler(path)
    forge(path, lambda members: members.update({"schema.json": schema}))
    refused(path, "damaged")


def test_the_cause_is_kept(path):
    saved_scaler(path)
    forge(path, edit_schema(no_member))
    with pytest.raises(ValueError, match=r"model\.cavity .*KeyError.*absent\.npy.*take another copy") as refusal:
        load(path)
    assert isinstance(refusal.value.__cause__, KeyError)


def test_what_is_no_estimator_is_not_loaded(path):
    saved_scaler(path)

    def only_a_list(schema):
        content = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "content": []}
        schema.update(content)

    forge(path, edit_schema(only_a_list))
    refused(path, r"speaks of 'StandardScaler', but it holds a list")


def test_lack_of_memory_is_no_damage(path, monkeypatch):
    saved_scaler(path)

    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("skops.io.loads", fail)
    with pytest.raises(MemoryError):
        load(path)


def test_indices_of_sparse_matrices_are_looked_at(path):
    model = KNeighborsClassifier(2, algorithm="brute").fit(sparse.csr_array(ROWS), [0, 1, 0, 1])
    model._fit_X.indices[1] = 7
    save(model, path)
    refused(path, "not consistent", trusted=[SPARSE])


def test_every_estimator_in_a_model_checks_its_state(path, monkeypatch):
    def check(self):
        if self.prior_variance == 7.0:
            raise ValueError("a variance of seven")

    for fitted in (cavity.EPClassifier, cavity.EPRegressor):
        monkeypatch.setattr(fitted, "_check_state", check, raising=False)
    bad, good = cavity.EPClassifier(prior_variance=7.0), cavity.EPClassifier(prior_variance=2.0)
    holder = StandardScaler()
    holder.fitted_ = {"models": np.array([[good, bad]], dtype=object)}
    for model in (
        bad,
        make_pipeline(StandardScaler(), bad),
        make_pipeline(ColumnTransformer([("a", make_pipeline(cavity.EPRegressor(prior_variance=7.0)), [0])]), good),
        VotingClassifier([("a", good), ("b", make_pipeline(bad))]),
        holder,
    ):
        save(model, path)
        refused(path, "not consistent: a variance of seven")
    save(make_pipeline(StandardScaler(), good), path)
    assert load(path)[-1].prior_variance == 2.0
