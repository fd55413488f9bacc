"""Odd inputs for every public estimator: each is learned from, or refused by a ValueError or a TypeError.

`python -m tests.hostile.odd_inputs --count 4000 --seed 0` tries any number of them and counts what went
wrong; the test beside it asks hypothesis for some.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse
import torch

from orbitwise import (
    AutoGPRegressor,
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
    VirtualSVC,
)

FEW = {"max_iterations": 6, "random_state": 0}
ESTIMATORS = {
    "exact": lambda: InvariantGPRegressor(**FEW),
    "linear mean": lambda: InvariantGPRegressor(mean="linear", **FEW),
    "permutation": lambda: InvariantGPRegressor(invariance="permutation", **FEW),
    "as given": lambda: InvariantGPRegressor(normalize_y=False, **FEW),
    "collapsed": lambda: InvariantGPRegressor(inference="collapsed", num_inducing=8, **FEW),
    "variational": lambda: InvariantGPRegressor(
        inference="variational", num_inducing=8, num_steps=6, random_state=0
    ),
    "sparse": lambda: SparseGPRegressor(max_inducing=16, **FEW),
    "search": lambda: AutoGPRegressor(
        max_depth=0, base_kernels=("rbf", "linear"), invariances=None, num_restarts=0, random_state=0
    ),
    "ridge": lambda: InvariantKernelRidge(random_state=0),
    "classifier": lambda: InvariantGPClassifier(**FEW),
    "sticks": lambda: InvariantGPClassifier(likelihood="stick_breaking", num_inducing=8, **FEW),
    "svc": lambda: InvariantSVC(random_state=0),
    "laplacian": lambda: LaplacianSVC(random_state=0),
    "virtual": lambda: VirtualSVC(random_state=0),
}
CLASSIFIERS = ("classifier", "sticks", "svc", "laplacian", "virtual")
SCALES = (1.0, 1e-6, 1e6, 1e-30, 1e30, 1e-100, 1e100, 1e-200, 1e200, 1e-310, 1e307)
MODERATE = (1.0, 1e-6, 1e6, 1e-30, 1e30)
NUMBERS = ("float64", "float32", ">f8", "longdouble")
DENSE = (
    *("array", "fortran", "read-only", "memmap", "list", "tuple", "strided", "reversed", "data frame"),
    *("nullable frame", "tensor", "learned tensor", "inference tensor", "rows of tensors"),
)
WRONG = (
    *("missing value", "sparse", "sparse tensor", "words", "ragged", "one dimension", "scalar"),
    *("no rows", "no columns", "four dimensions", "nothing", "nan", "infinite", "mapping"),
)
DATED = (
    *("dates", "dates in lists", "dates as objects", "dated frame", "dated column", "zoned column"),
    *("categories of dates", "durations", "periods"),
)
CHOICES = {
    "estimator": tuple(ESTIMATORS),
    "rows": (
        *("some", "duplicates", "all the same", "one", "two", "many columns", "constant column", "outlier"),
    ),
    "scale": SCALES,
    "offset": (0.0, 1.0, 1e4),
    "dtype": (*NUMBERS, "float16", "int64", "uint8", "bool", "object", "complex128"),
    "container": DENSE + WRONG + DATED,
    "targets": (
        *("plain", "constant", "one class", "column", "two outputs", "whole", "truth values", "objects"),
        *("words", "nan", "too few", "too many", "outlier", "nullable", "tensor", "complex"),
        *("dates", "dated frame", "dates as objects", "nothing"),
    ),
    "target_scale": SCALES,
    "mode": ("usual", "no_grad", "inference_mode"),
}
PLAIN = {"rows": "some", "scale": 1.0, "offset": 0.0, "dtype": "float64", "container": "array"}
PLAIN |= {"targets": "plain", "target_scale": 1.0, "mode": "usual"}
SECONDS = 60.0
FAULTS = (
    "silent NaN",
    "wrong exception",
    "refused for no reason",
    "absurd size",
    "wrong shape",
    "learned from dates",
)


@dataclass(frozen=True)
class Case:
    """One odd input."""

    estimator: str
    rows: str
    scale: float
    offset: float
    dtype: str
    container: str
    targets: str
    target_scale: float
    mode: str
    seed: int = 0

    @property
    def must_work(self) -> bool:
        """Whether nothing about it is a reason to refuse it."""
        return (
            self.rows not in ("one", "two", "outlier")
            and (self.rows, self.estimator) != ("many columns", "permutation")  # 20! exchanges
            and self.scale in MODERATE
            and self.target_scale in MODERATE
            and (self.dtype in NUMBERS or (self.dtype == "object" and self.scale == 1.0))
            and self.container in DENSE
            and self.targets in ("plain", "column", "whole", "truth values", "nullable", "tensor")
        )

    @property
    def must_fail(self) -> bool:
        """Whether it has dates where nobody turns them into numbers; a search does so with dates in X."""
        return self.targets in DATED or (self.container in DATED and self.estimator != "search")


def any_case(rng: np.random.Generator) -> Case:
    """A case of which each trait is odd with a chance of a third, so that most can be learned from."""
    chosen = {}
    for name, values in CHOICES.items():
        is_odd = name == "estimator" or rng.random() < 1 / 3
        chosen[name] = values[rng.integers(len(values))] if is_odd else PLAIN[name]
    return Case(**chosen, seed=int(rng.integers(1000)))


def inputs_of(case: Case, folder: Path) -> object:
    rng = np.random.default_rng(case.seed)
    count = {"one": 1, "two": 2}.get(case.rows, 14)
    width = 20 if case.rows == "many columns" else 2
    x = rng.normal(size=(count, width))
    if case.rows == "duplicates":
        x = x[rng.integers(4, size=count)]
    if case.rows == "all the same":
        x[:] = x[0]
    if case.rows == "constant column":
        x[:, 0] = 1.0
    if case.rows == "outlier":
        x[3, 0] = 1e60
    with np.errstate(all="ignore"):
        x = (case.scale * (x + case.offset)).astype(case.dtype)
    return contained(x, case.container, folder)


def contained(x: np.ndarray, container: str, folder: Path) -> object:
    if container == "fortran":
        return np.asfortranarray(x)
    if container == "read-only":
        x.flags.writeable = False
        return x
    if container == "memmap":
        kept = np.memmap(folder / "x.dat", dtype=np.float64, mode="w+", shape=x.shape)
        kept[:] = x.real.astype(np.float64)
        return kept
    if container in ("list", "tuple"):
        return x.tolist() if container == "list" else tuple(map(tuple, x.tolist()))
    if container == "strided":
        return np.repeat(x, 2, axis=0)[::2]
    if container == "reversed":
        return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    if container in ("data frame", "nullable frame", "missing value"):
        frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
        if container == "data frame":
            return frame
        frame = frame.astype(np.float64).astype("Float64")
        if container == "missing value":
            frame.iloc[0, 0] = pd.NA
        return frame
    if container.endswith("tensor") or container == "rows of tensors":
        return tensors(np.ascontiguousarray(x).astype(np.float64), container)
    if container == "sparse":
        return scipy.sparse.csr_array(x.astype(np.float64))
    return dated(x, container) if container in DATED else malformed(x, container)


def dated(x: np.ndarray, container: str) -> object:
    days = np.datetime64("2020-01-01") + np.arange(x.size).reshape(x.shape).astype("timedelta64[D]")
    frame = pd.DataFrame(x.real.astype(np.float64), columns=[f"c{i}" for i in range(x.shape[1])])
    column = pd.Series(days[:, -1].astype("datetime64[s]"))
    columns = {
        "dated column": lambda: column,
        "zoned column": lambda: column.dt.tz_localize("UTC"),
        "categories of dates": lambda: column.astype("category"),
        "durations": lambda: column - column[0],
        "periods": lambda: column.dt.to_period("D"),
    }
    if container in columns:
        return frame.assign(c1=columns[container]())
    made = {
        "dates in lists": lambda: [list(row) for row in days],
        "dates as objects": lambda: _objects(days),
        "dated frame": lambda: pd.DataFrame(days.astype("datetime64[s]"), columns=frame.columns),
    }
    return made[container]() if container in made else days


def tensors(x: np.ndarray, container: str) -> object:
    if container == "inference tensor":
        with torch.inference_mode():
            return torch.tensor(x)
    found = torch.tensor(x, requires_grad=container in ("learned tensor", "rows of tensors"))
    if container == "rows of tensors":
        return list(found)
    return found.to_sparse() if container == "sparse tensor" else found


def _objects(days: np.ndarray) -> np.ndarray:
    """The same dates, each an object of its own."""
    made = np.empty(days.shape, dtype=object)
    for place in np.ndindex(days.shape):
        made[place] = days[place]
    return made


def malformed(x: np.ndarray, container: str) -> object:
    made = {
        "words": lambda: np.full(x.shape, "abc"),
        "ragged": lambda: [[1.0, 2.0], [3.0]] * len(x),
        "one dimension": lambda: x[:, 0],
        "scalar": lambda: x[0, 0],
        "no rows": lambda: x[:0],
        "no columns": lambda: x[:, :0],
        "four dimensions": lambda: x[:, :, None, None],
        "nothing": lambda: None,
        "nan": lambda: np.where(np.arange(x.shape[1]) == 0, np.nan, x.astype(np.float64)),
        "infinite": lambda: np.where(np.arange(x.shape[1]) == 0, -np.inf, x.astype(np.float64)),
        "mapping": lambda: {"a": 1},
    }
    return made[container]() if container in made else x


def targets_of(case: Case) -> object:
    rng = np.random.default_rng(case.seed + 1)
    count = {"one": 1, "two": 2}.get(case.rows, 14)
    y = rng.normal(size=count)
    if case.estimator in CLASSIFIERS or case.targets in ("whole", "words", "truth values"):
        y = np.arange(count) % 2
    y = y * case.target_scale if case.estimator not in CLASSIFIERS else y
    made = {
        "constant": lambda: np.full(count, y[0]),
        "one class": lambda: np.zeros(count, dtype=int),
        "column": lambda: y[:, None] if case.estimator not in CLASSIFIERS else y,
        "two outputs": lambda: np.stack([y, y], axis=1),
        "truth values": lambda: y > 0,
        "objects": lambda: y.astype(object),
        "words": lambda: np.array(["no", "yes"])[np.arange(count) % 2],
        "nan": lambda: np.where(np.arange(count) == 0, np.nan, y),
        "too few": lambda: y[:-1],
        "too many": lambda: np.append(y, y[:1]),
        "outlier": lambda: np.where(np.arange(count) == 0, 1e200, y),
        "nullable": lambda: pd.Series(y).astype("Int64" if y.dtype.kind == "i" else "Float64"),
        "tensor": lambda: torch.tensor(y, requires_grad=y.dtype.kind == "f"),
        "complex": lambda: y + 1j,
        "dates": lambda: np.datetime64("2020-01-01") + (np.arange(count) % 2).astype("timedelta64[D]"),
        "dated frame": lambda: pd.DataFrame({"t": pd.date_range("2020-01-01", periods=count)}),
        "dates as objects": lambda: _objects(
            np.datetime64("2020-01-01") + (np.arange(count) % 2).astype("timedelta64[D]")
        ),
        "nothing": lambda: None,
    }
    with np.errstate(all="ignore"):
        return made[case.targets]() if case.targets in made else y


def answers(model: object, x: object) -> dict[str, object]:
    """All that a fitted estimator says of rows."""
    found: dict[str, object] = {"evidence": getattr(model, "log_evidence_", 0.0)}
    if hasattr(model, "predict_proba"):
        found["probabilities"] = model.predict_proba(x)
    elif hasattr(model, "posterior_"):
        found["mean"], found["deviation"] = model.predict(x, return_std=True)
    elif not hasattr(model, "classes_"):
        found["mean"] = model.predict(x)
    model.predict(x)
    return found


def outcome(case: Case) -> tuple[str, str]:
    """What happened, "fine", "refused" or one of the faults, and details."""
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = inputs_of(case, Path(folder)), targets_of(case)
        try:
            with modes.get(case.mode, torch.enable_grad)():
                found = answers(ESTIMATORS[case.estimator]().fit(x, y), x)
        except (ValueError, TypeError) as error:
            return ("refused for no reason" if case.must_work else "refused"), repr(error)
        except Exception as error:
            return "wrong exception", repr(error)
    if case.must_fail:
        return "learned from dates", str(type(x))
    for name, values in found.items():
        if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
            return "silent NaN", name
    if "mean" in found:
        plain = y.detach() if isinstance(y, torch.Tensor) else y
        given, mean = np.asarray(plain, dtype=np.float64), np.asarray(found["mean"])
        if len(mean) != len(given):
            return "wrong shape", str(mean.shape)
        if np.abs(mean).max() > 1e3 * np.abs(given).max() + 1e-300:
            return "absurd size", f"{np.abs(mean).max():.3g} where targets reach {np.abs(given).max():.3g}"
    return "fine", ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    rng = np.random.default_rng(asked.seed)
    counts: Counter[str] = Counter()
    for _ in range(asked.count):
        case = any_case(rng)
        start = time.perf_counter()
        kind, details = outcome(case)
        counts[kind] += 1
        counts["slow"] += time.perf_counter() - start > SECONDS
        if kind in FAULTS:
            odd = {f.name: getattr(case, f.name) for f in fields(case)}
            print(kind, {k: v for k, v in odd.items() if PLAIN.get(k) != v}, details[:300], flush=True)
    print(f"{asked.count} odd inputs: {counts['fine']} learned from, {counts['refused']} refused")
    for fault in FAULTS:
        print(f"{fault}: {counts[fault]}")
    print(f"over {SECONDS:.0f} s: {counts['slow']}")
    return int(any(counts[fault] for fault in (*FAULTS, "slow")))


if __name__ == "__main__":
    sys.exit(main())
