"""Mutated model files: ``python -m benchmarks.fuzz_files --cases 2000 --seed 0``.

A file of which bytes were changed gives a ValueError or the model that was saved. A file that was forged, its checksums
as well, gives a ValueError or a model that works: it predicts finite numbers and takes rows in, or says ValueError.
Anything else is a failure: another exception, a crash, more than 20 s for a case, more than 1 GB of memory on top.

Cases run in processes of their own, a chunk in each, so that a crash is seen and the rest goes on.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cavity

CHUNK, SECONDS, BYTES = 100, 20, 2**30
HEADER = "cavity.json"
# What takes the place of a value in the header.
VALUES = (None, True, 0, -1, 2**31, 2**63, 1e308, -1e308, float("nan"), "", "nan", "1e400", "-5", "null", [], {}, [[]])
HEADERS = ("(0,)", "(1,)", "(3,)", "(2, 2)", "()", "(1000000000000,)", "(-1,)", "(1, 0, 5)")
DTYPES = ("<f8", "<f4", "<i8", ">f8", "|b1", "<c16", "<U2", "|O", "<M8[s]", "|V8")
NUMBERS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, 1e-308, 5e-324)


def data() -> tuple[Any, Any]:
    """Rows and labels that every model was fitted to."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    return X, np.where(X[:, 0] + 0.3 * rng.normal(size=60) > 0.0, 1, 0)


def table() -> Any:
    """Give the rows with a column of categories."""
    X, y = data()
    return pd.DataFrame(X).assign(shop=np.where(y > 0, "a", "b")).rename(columns=str)


def rows_for(model: Any) -> Any:
    """Give the rows as the model takes them."""
    return table() if hasattr(model, "categories_") else data()[0]


def build_models() -> list[Any]:
    """Models of the kinds that hold different things."""
    X, y = data()
    labels = np.array(["ash", "elm", "oak"])[y + (X[:, 1] > 0.5)]
    return [
        cavity.EPClassifier(random_state=0).fit(X, y),
        cavity.EPClassifier(random_state=0).partial_fit(sparse.csr_array(X), y, classes=[0, 1]),
        cavity.EPClassifier(random_state=0).fit(X, labels),
        cavity.EPRegressor(random_state=0).fit(X, X[:, 0] + 0.1 * y),
        make_pipeline(StandardScaler(), cavity.EPRegressor(random_state=0)).fit(X, X[:, 0] + 0.1 * y),
        cavity.EPRegressor(loss="normal", scale="linear").fit(X, X[:, 0] + 0.1 * y),
        cavity.EPRegressor().fit(table(), X[:, 0]),
    ]


def unzipped(content: bytes) -> dict[str, bytes]:
    """Members of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: dict[str, bytes]) -> bytes:
    """Archive of members, not compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return out.getvalue()


# Damage: the checksums stay as they were.


def flip(content: bytes, rng: np.random.Generator) -> bytes:
    """Flip up to eight bits."""
    changed = bytearray(content)
    for place in rng.integers(0, len(content), rng.integers(1, 9)):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def flip_tables(content: bytes, rng: np.random.Generator) -> bytes:
    """Flip a bit in the archive's directory, at the end."""
    changed = bytearray(content)
    changed[-int(rng.integers(1, 180))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut the end off."""
    return content[: int(rng.integers(len(content)))]


def shift(content: bytes, rng: np.random.Generator) -> bytes:
    """Lose some bytes, or repeat them."""
    begin, length = int(rng.integers(len(content))), int(rng.integers(1, 100))
    return content[:begin] + (content[begin - length :] if rng.random() < 0.5 else content[begin + length :])


def swap_members(content: bytes, rng: np.random.Generator) -> bytes:
    """Give the members other names, order or company."""
    members = unzipped(content)
    names = rng.permutation([*members, "other"])[: int(rng.integers(1, len(members) + 2))]
    return zipped({str(name): members[rng.choice(list(members))] for name in names})


DAMAGE: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (flip, flip_tables, truncate, shift, swap_members)


# Forgery: of the members, with new checksums.


def places(state: Any) -> list[tuple[Any, Any]]:
    """All places in a header, as containers and keys."""
    keys = list(state) if isinstance(state, dict) else list(range(len(state))) if isinstance(state, list) else []
    return [place for key in keys for place in ((state, key), *places(state[key]))]


def edit_header(members: dict[str, bytes], rng: np.random.Generator) -> None:
    """Replace, remove or exchange values of the header."""
    header = json.loads(members[HEADER])
    for _ in range(int(rng.integers(1, 4))):
        found = places(header["model"])
        holder, key = found[int(rng.integers(len(found)))]
        other, its_key = found[int(rng.integers(len(found)))]
        kind = rng.integers(4)
        if kind == 0:
            holder[key] = VALUES[int(rng.integers(len(VALUES)))]
        elif kind == 1:
            del holder[key]
        elif kind == 2:
            holder[key] = json.loads(json.dumps(other[its_key]))
        elif isinstance(holder[key], int | float):
            holder[key] = float(rng.choice([-1.0, 0.5, 10.0, 1e300])) * holder[key]
    members[HEADER] = json.dumps(header).encode()


def an_array(members: dict[str, bytes], rng: np.random.Generator) -> str:
    """Name of one of the arrays."""
    return str(rng.choice([name for name in members if name.endswith(".npy")]))


def edit_array(members: dict[str, bytes], rng: np.random.Generator) -> None:
    """Give an array another shape or dtype, with the bytes it had or with as many as that takes."""
    name = an_array(members, rng)
    array = np.load(io.BytesIO(members[name]))
    shape = rng.choice([*HEADERS, str(array.shape)])
    header = f"{{'descr': '{rng.choice([*DTYPES, array.dtype.str])}', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    body = array.tobytes() if rng.random() < 0.5 else bytes(int(rng.integers(0, 9)) * 8)
    members[name] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


def edit_numbers(members: dict[str, bytes], rng: np.random.Generator) -> None:
    """Change the numbers of an array, or how many there are."""
    name = an_array(members, rng)
    array = np.array(np.load(io.BytesIO(members[name])))
    if array.dtype.kind in "fiub" and array.size:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array.flat[int(rng.integers(array.size))] = np.array(rng.choice(NUMBERS)).astype(array.dtype)
    if rng.random() < 0.4 and array.ndim:
        array = np.repeat(array, 2, axis=0) if rng.random() < 0.5 else array[:-1]
    out = io.BytesIO()
    np.save(out, array)
    members[name] = out.getvalue()


def edit_bytes(members: dict[str, bytes], rng: np.random.Generator) -> None:
    """Damage one member."""
    name = str(rng.choice(list(members)))
    members[name] = DAMAGE[int(rng.choice([0, 2, 3]))](members[name] or b"x", rng)


def exchange(members: dict[str, bytes], rng: np.random.Generator) -> None:
    """Put one member in the place of another, or take one away."""
    one, other = (str(rng.choice(list(members))) for _ in range(2))
    if rng.random() < 0.5:
        members[one], members[other] = members[other], members[one]
    else:
        del members[one]


FORGERY: tuple[Callable[[dict[str, bytes], np.random.Generator], None], ...] = (
    edit_header,
    edit_header,
    edit_array,
    edit_numbers,
    edit_numbers,
    edit_bytes,
    exchange,
)


def forge(
    content: bytes, rng: np.random.Generator, change: Callable[[dict[str, bytes], np.random.Generator], None]
) -> bytes:
    """Change the members of a file, and write another archive of them."""
    members = unzipped(content)
    change(members, rng)
    return zipped(members)


# One case.


def traits(model: Any) -> list[Any]:
    """What distinguishes one model from another."""
    X = rows_for(model)
    found = [repr(model.get_params()), model.predict(X).tolist()]
    return [*found, model.predict_proba(X).tolist()] if hasattr(model, "predict_proba") else found


def ours(model: Any) -> list[Any]:
    """Return the estimators of this library in a model: what others make of numbers that were forged is theirs."""
    steps = getattr(model, "steps", None)
    parts = [model, *(part for step in steps if isinstance(step, tuple) for part in step)] if steps else [model]
    return [part for part in parts if isinstance(part, cavity.EPClassifier | cavity.EPRegressor)]


def use(model: Any) -> None:
    """Predict with an estimator and let it take in rows; results must be finite."""
    (numbers, y), X = data(), rows_for(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [model.predict_proba(X)] if hasattr(model, "predict_proba") else [model.predict(X)]
        if hasattr(model, "partial_fit"):
            targets = model.classes_[y % len(model.classes_)] if hasattr(model, "classes_") else numbers[:, 0]
            model.partial_fit(X, targets)
            results.append(model.coef_)
    if not all(np.all(np.isfinite(result)) for result in results):
        raise AssertionError("a result is not finite")


def run_case(case: int, seed: int, files: list[bytes], folder: Path) -> str:
    """Outcome of a case; a failure is an exception other than ValueError."""
    rng = np.random.default_rng([seed, case])
    content = files[int(rng.integers(len(files)))]
    forged = rng.random() < 0.6
    if forged:
        changed = forge(content, rng, FORGERY[int(rng.integers(len(FORGERY)))])
    else:
        changed = DAMAGE[int(rng.integers(len(DAMAGE)))](content, rng)
    path = folder / "changed"
    path.write_bytes(changed)
    try:
        model = cavity.load(path)
    except ValueError:
        return "refused"
    if not forged:
        path.write_bytes(content)
        if traits(model) != traits(cavity.load(path)):
            raise AssertionError("another model, with the checksums of the first")
        return "the same"
    try:
        for estimator in ours(model):
            use(estimator)
    except ValueError:
        return "refused in use"
    except Exception as error:
        raise AssertionError(f"loaded, and in use {type(error).__name__}: {error}") from error
    return "works"


def run_chunk(first: int, last: int, seed: int, folder: Path) -> None:
    """Run cases, and print what came of each as soon as it is known."""
    files = [path.read_bytes() for path in sorted(folder.glob("*.cavity"))]
    for path in sorted(folder.glob("*.cavity")):
        for estimator in ours(cavity.load(path)):
            use(estimator)  # compiles, and needs memory once
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES,) * 2)
    with tempfile.TemporaryDirectory() as scratch:
        for case in range(first, last):
            print(case, flush=True)
            signal.alarm(SECONDS)
            try:
                print(case, run_case(case, seed, files, Path(scratch)), flush=True)
            except Exception as error:
                print(case, f"FAILED {type(error).__name__}: {str(error)[:200]}".replace("\n", " "), flush=True)
            signal.alarm(0)


def main() -> int:
    """Run all chunks; list the failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", nargs=3, metavar=("FIRST", "LAST", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk:
        run_chunk(int(options.chunk[0]), int(options.chunk[1]), options.seed, Path(options.chunk[2]))
        return 0
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for k, model in enumerate(build_models()):
            cavity.save(model, Path(folder) / f"{k}.cavity")
        first = 0
        while first < options.cases:
            first = follow_chunk(first, options, folder, outcomes, failures)
    print(dict(outcomes), *failures, sep="\n")
    print(f"{options.cases} cases, {len(failures)} failures")
    return int(bool(failures))


def follow_chunk(first: int, options: Any, folder: str, outcomes: Counter[str], failures: list[str]) -> int:
    """Run a chunk in a process of its own; the case after the last one it came to."""
    last = min(first + CHUNK, options.cases)
    command = [sys.executable, "-m", "benchmarks.fuzz_files", "--seed", str(options.seed), "--chunk"]
    done = subprocess.run([*command, str(first), str(last), folder], capture_output=True, text=True, env=os.environ)
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    if not lines:
        raise RuntimeError(f"the process of cases {first} to {last} did not begin: {done.stderr[-2000:]}")
    for case, _, outcome in lines:
        if outcome.startswith("FAILED"):
            failures.append(f"case {case}: {outcome}")
        elif outcome:
            outcomes[outcome] += 1
    if done.returncode:
        how = "took too long" if done.returncode == -signal.SIGALRM else f"crashed, exit code {done.returncode}"
        failures.append(f"case {lines[-1][0]}: {how} {done.stderr[-200:]}")
        return int(lines[-1][0]) + 1
    return last


if __name__ == "__main__":
    sys.exit(main())
