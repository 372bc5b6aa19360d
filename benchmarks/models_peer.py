"""Random effects beside variational Bayes of statsmodels, where that is installed; it runs in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings

import numpy as np
from scipy import sparse

from benchmarks.bars import markdown
from benchmarks.models_crossed import HALF, Simulated, covered, simulate, titled
from cavity import EPClassifier
from reference.problems import FloatArray
from reference.timing import timed

Shape = tuple[int, int, int]

# Seconds after which the peer is stopped.
PATIENCE = 600.0
HEADER = ("data", "model", "seconds", "variances / mean squares", "covered, 90 %")
_PEER = "BinomialBayesMixedGLM.fit_vb"


def beside_statsmodels(shapes: tuple[Shape, ...], patience: float = PATIENCE) -> str:
    """A table of time, variances and coverage of both; of ours alone where statsmodels is not installed."""
    lines = []
    for shape in shapes:
        data = simulate(*shape, seed=0)
        table = data.table()
        model, seconds = timed(lambda table=table, data=data: EPClassifier().fit(table, data.y))
        variances = [model.prior_variance_[name] for name in data.codes]
        ours = _line(data, "EPClassifier", seconds, variances, list(covered(data, model).values()))
        lines += [(titled(shape), *line) for line in (ours, _peer(shape, data, patience))]
    return markdown(HEADER, lines)


def _peer(shape: Shape, data: Simulated, patience: float) -> tuple[str, ...]:
    if importlib.util.find_spec("statsmodels") is None:
        return _PEER, "", "statsmodels is not installed: skipped", ""
    command = [sys.executable, "-m", "benchmarks.models_peer", *(str(n) for n in shape)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return _PEER, f"stopped after {patience:g}", "", ""
    return _line(data, _PEER, *json.loads(done.stdout))


def _line(data: Simulated, peer: str, seconds: float, variances: list[float], shares: list[float]) -> tuple[str, ...]:
    ratios = np.array(variances) / [np.mean(u**2) for u in data.effects.values()]
    return (
        peer, f"{seconds:.2f}", ", ".join(f"{ratio:.3f}" for ratio in ratios),
        ", ".join(f"{100.0 * share:.1f} %" for share in shares),
    )  # fmt: skip


def by_statsmodels(data: Simulated) -> tuple[float, list[float], list[float]]:
    """Seconds, variances and coverage of variational Bayes under wide priors."""
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    sizes = [effects.size for effects in data.effects.values()]
    levels = [_indicators(codes, size) for codes, size in zip(data.codes.values(), sizes, strict=True)]
    owners, truth = np.repeat(np.arange(len(sizes)), sizes), np.concatenate(list(data.effects.values()))
    columns = np.column_stack([data.x, np.ones(data.y.size)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BinomialBayesMixedGLM(
            data.y, columns, sparse.hstack(levels, format="csr"), owners, vcp_p=2.0, fe_p=10.0
        )
        found, seconds = timed(model.fit_vb)
    inside = np.abs(found.vc_mean - truth) <= HALF * found.vc_sd
    shares = [float(np.mean(inside[owners == k])) for k in range(len(sizes))]
    return seconds, [float(v) for v in np.exp(2.0 * found.vcp_mean)], shares


def _indicators(codes: FloatArray, size: int) -> sparse.csr_matrix:
    n = codes.size
    return sparse.csr_matrix((np.ones(n), (np.arange(n), codes)), shape=(n, size))


if __name__ == "__main__":
    print(json.dumps(by_statsmodels(simulate(*(int(word) for word in sys.argv[1:4]), seed=0))))
