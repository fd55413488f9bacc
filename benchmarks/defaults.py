"""Default estimators on labelled sets and sets of regression, beside what people would use otherwise.

    python benchmarks/defaults.py --rows 2000 --splits 5 --workers 14
    python benchmarks/defaults.py --as-given --rows 5000 --sets mnist
    python benchmarks/defaults.py --merge results/defaults_part_1.json results/defaults_part_2.json

`InvariantGPClassifier()` stands beside a support vector machine, with C and gamma by cross-validation and
calibrated probabilities, and gradient boosting; `InvariantGPRegressor()` and `SparseGPRegressor()` beside
scikit-learn's Gaussian process and gradient boosting. Ours take rows as they are; tables have their columns
standardised for support vectors and scikit-learn's Gaussian process. A split trains on `--rows` rows, or on
three quarters where a set has fewer, and tests on at most 2,000 others. With `--as-given`, the first rows of
the training set that the data come with are learned, and its whole test set is tested. Images are also
classified with `invariance="affine"` where `--methods` names it. Needs ORBITWISE_DATA.

Fits run in `--workers` processes of one thread each, without a GPU, the longest first. The record, by default
results/defaults.json, is written after every fit, and the command resumes with what is missing there. After
`--max-seconds` no fit begins. `--merge` adds what other records hold, which replaces what is there, and fits
nothing. Seconds are those of the processor.
"""

import json
import math
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, datasets
from orbitwise.experiments.records import Record, command_line, versions_and_machine

TABLES = (
    *("iris", "wine", "breast_cancer", "uci_australian", "uci_bupa", "uci_heart", "uci_ionosphere"),
    *("uci_sonar", "ssl_bci", "ssl_g241c", "ssl_g241n", "ssl_usps"),
)
GREY_LEVELS = {"digits": 16.0, "usps": 1.0, "mnist": 255.0, "mnist_rot_generated": 255.0}
WITH_TEST_SET = ("usps", "mnist", "mnist_rot_generated")
NUMBERS = ("yacht", "boston", "energy", "concrete", "wine_red", "power", "kin8nm", "protein")
SETS = (*TABLES, *GREY_LEVELS, *(f"uci_reg_{name}" for name in NUMBERS))
MOST_TESTED = 2_000
GIVEN = "given"
AFFINE = "InvariantGPClassifier(affine)"
GRID = {"svc__C": [0.1, 1, 10, 100, 1000], "gamma": [0.03, 0.1, 0.3, 1, 3]}
"""C, and gamma in units of one over the number of columns times the variance of all entries."""


def is_regression(name):
    return name.startswith("uci_reg_")


def load(name, split, num_rows):
    """Rows and targets of training, and of testing: given splits where a set brings them, else drawn.

    The split `GIVEN` is the order of the files, and tests all rows.
    """
    data = datasets.load(name)
    draw = np.random.default_rng(0 if split == GIVEN else split)
    if "x_train" in data.arrays:
        x, y = (np.concatenate([data.arrays[f"{part}_train"], data.arrays[f"{part}_test"]]) for part in "xy")
        count = len(data.arrays["x_train"])
        train, test = draw.permutation(count), count + draw.permutation(len(x) - count)
        if split == GIVEN:
            train, test = np.sort(train), np.sort(test)
    else:
        x, y = data.arrays["x"], data.arrays["y"]
        order = draw.permutation(len(x))
        if "test_idx" in data.arrays:
            is_test = np.isin(order, data.arrays["test_idx"][split])
        else:
            is_test = np.arange(len(x)) >= min(num_rows, 3 * len(x) // 4)
        train, test = order[~is_test], order[is_test]
    train, test = train[:num_rows], test if split == GIVEN else test[:MOST_TESTED]
    x = x.reshape(len(x), -1).astype(float) / GREY_LEVELS.get(name, 1.0)
    return x[train], y[train], x[test], y[test]


def support_vectors(name, x, y, x_test):
    """The classes by the best of the grid, and its probabilities, calibrated on held-out decisions."""
    scaler = StandardScaler() if name in TABLES else FunctionTransformer()
    scaled = scaler.fit_transform(x)
    unit = 1 / (scaled.shape[1] * scaled.var())
    # libsvm takes a kernel that it is given as a matrix, and would take longer to compute it itself
    kernels = {partial(rbf_kernel, gamma=unit * each): unit * each for each in GRID["gamma"]}
    grid = {"svc__C": GRID["svc__C"], "svc__kernel": list(kernels)}
    scaler = StandardScaler() if name in TABLES else FunctionTransformer()
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    search = GridSearchCV(make_pipeline(scaler, SVC()), grid, cv=folds).fit(x, y)
    calibrated = CalibratedClassifierCV(search.best_estimator_, ensemble=False, cv=folds).fit(x, y)
    best = {
        "svc__C": float(search.best_params_["svc__C"]),
        "svc__gamma": float(kernels[search.best_params_["svc__kernel"]]),
    }
    return search.predict(x_test), calibrated.predict_proba(x_test), best


def classify(name, method, x, y, x_test):
    if method == "SVC":
        return support_vectors(name, x, y, x_test)
    if method == "boosting":
        model = HistGradientBoostingClassifier(random_state=0).fit(x, y)
        return model.predict(x_test), model.predict_proba(x_test), {}
    invariance = None
    if method == AFFINE:
        side = math.isqrt(x.shape[1])
        x, x_test, invariance = x.reshape(-1, side, side), x_test.reshape(-1, side, side), "affine"
    model = InvariantGPClassifier(invariance=invariance, random_state=0).fit(x, y)
    probabilities = model.predict_proba(x_test)
    return model.classes_[probabilities.argmax(1)], probabilities, described(model)


def regress(method, x, y, x_test):
    """Means, deviations where there are any, and what was learned."""
    if method == "boosting":
        return HistGradientBoostingRegressor(random_state=0).fit(x, y).predict(x_test), None, {}
    if method == "scikit-learn GP":
        kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
        model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))
        mean, deviation = model.fit(x, y).predict(x_test, return_std=True)
        return mean, deviation, {"log_evidence": float(model[-1].log_marginal_likelihood_value_)}
    make = {"InvariantGPRegressor": InvariantGPRegressor, "SparseGPRegressor": SparseGPRegressor}[method]
    model = make(random_state=0).fit(x, y)
    mean, deviation = model.predict(x_test, return_std=True)
    return mean, deviation, described(model)


def described(model):
    kernel = getattr(model, "kernel_choice_", "RBF, one lengthscale per column").partition(
        ", by the held-out"
    )[0]
    about = {"log_evidence": float(model.log_evidence_), "kernel": kernel}
    if hasattr(model, "num_inducing_"):
        about["num_inducing"] = int(model.num_inducing_)
    return about


CLASSIFIERS = ("InvariantGPClassifier", "SVC", "boosting")
REGRESSORS = ("InvariantGPRegressor", "SparseGPRegressor", "scikit-learn GP", "boosting")


def measure(name, split, method, num_rows):
    x, y, x_test, y_test = load(name, split, num_rows)
    about, start = {"rows": len(x), "columns": x.shape[1], "tested": len(x_test)}, time.process_time()
    if is_regression(name):
        unit = float(np.std(datasets.load(name).arrays["y"], dtype=float))
        mean, deviation, extra = regress(method, x, y.astype(float), x_test)
        seconds, residual = time.process_time() - start, (y_test - mean) / unit
        about["rmse"] = math.sqrt(np.mean(residual**2))
        if deviation is not None:
            variance = (deviation / unit) ** 2
            about["log_density"] = float(
                -0.5 * np.mean(np.log(2 * np.pi * variance) + residual**2 / variance)
            )
    else:
        classes, probabilities, extra = classify(name, method, x, y, x_test)
        seconds = time.process_time() - start
        about["error"] = float((classes != y_test).mean())
        about["log_loss"] = float(log_loss(y_test, probabilities, labels=np.unique(y)))
    return {**about, "seconds": seconds, **extra}


def commands(records):
    """The commands that make these records, one for each number of rows."""
    runs = {}
    for row in records:
        runs.setdefault((row["most_rows"], row["split"] == GIVEN), []).append(row)
    lines = []
    for (rows, is_given), some in runs.items():
        line = f"python benchmarks/defaults.py --rows {rows}"
        line += " --as-given" if is_given else f" --splits {1 + max(row['split'] for row in some)}"
        sets = {row["set"] for row in some}
        if sets != set(SETS):
            line += f" --sets {' '.join(name for name in SETS if name in sets)}"
        methods = {row["method"] for row in some}
        if AFFINE in methods:
            line += f" --methods {' '.join(dict.fromkeys(row['method'] for row in some))}"
        lines.append(line.replace(AFFINE, f"'{AFFINE}'"))
    return "\n    ".join(lines)


def summarise(records):
    table = Table(title="mean over splits")
    for heading in ("set", "method", "splits", "rows", "error % or RMSE", "log loss or density", "s"):
        table.add_column(heading, justify="left" if heading in ("set", "method") else "right")
    groups = {}
    for row in records:
        groups.setdefault((row["set"], row["most_rows"], row["method"]), []).append(row)
    for (name, _, method), rows in groups.items():

        def mean(key, digits, factor=1, rows=rows):
            known = [factor * row[key] for row in rows if key in row]
            return f"{np.mean(known):.{digits}f}" if known else "–"

        keys = (("rmse", 4, 1), ("log_density", 3, 1)) if is_regression(name) else ()
        keys = keys or (("error", 2, 100), ("log_loss", 4, 1))
        cells = [mean(*each) for each in keys]
        table.add_row(name, method, str(len(rows)), str(rows[0]["rows"]), *cells, mean("seconds", 1))
    return table


ALONE = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "",
}
"""The environment of a process that fits: one thread, and no GPU."""


def begin_worker():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def cells(arguments, known):
    """(set, split, method) of all that was asked for and is not known, those that take longest first."""
    splits = [GIVEN] if arguments.as_given else range(arguments.splits)
    missing = []
    for name in arguments.sets:
        offered = REGRESSORS if is_regression(name) else CLASSIFIERS
        if arguments.methods is not None:
            offered = [each for each in offered if each in arguments.methods]
            offered += [AFFINE] * (AFFINE in arguments.methods and name in GREY_LEVELS)
        for split in splits:
            missing += [(name, split, method) for method in offered]
    missing = [each for each in missing if (each[0], arguments.rows, *each[1:]) not in known]
    return sorted(missing, key=lambda each: -expected_seconds(each[0], each[2], arguments.rows))


def expected_seconds(name, method, num_rows):
    """About how long a fit takes on one core, to begin with the longest."""
    data = datasets.load(name)
    x, y = (data.arrays.get(each, data.arrays.get(f"{each}_train")) for each in "xy")
    if "x_train" not in data.arrays:
        num_rows = min(num_rows, 9 * len(x) // 10 if "test_idx" in data.arrays else 3 * len(x) // 4)
    thousands = min(num_rows, len(x)) / 1000
    hundreds, num_classes = x[0].size / 100, 1 if is_regression(name) else len(np.unique(y))
    fixed, of_square, of_cube = SECONDS[method]
    if method == "boosting":
        return fixed + of_square * hundreds * num_classes * thousands
    return fixed + of_square * (1 + hundreds) * thousands**2 + of_cube * thousands**3


SECONDS = {
    "InvariantGPClassifier": (1.0, 0.3, 0.5),
    AFFINE: (200.0, 400.0, 100.0),
    "SVC": (0.5, 0.35, 0.0),
    "boosting": (0.1, 0.3, 0.0),
    "InvariantGPRegressor": (0.5, 0.2, 0.5),
    "SparseGPRegressor": (1.0, 0.5, 1.5),
    "scikit-learn GP": (0.5, 0.5, 4.0),
}
"""Fixed, times (1 + hundreds of columns) × thousands of rows squared, and times thousands of rows cubed.

Trees take their second times hundreds of columns × classes × thousands of rows.
"""


def merge(record, paths):
    """Add the records of other files, which replace those of the same fit."""
    records = {key_of(row): row for row in record.values["records"]}
    for path in paths:
        part = json.loads(path.read_text(encoding="utf-8"))
        records |= {key_of(row): row for row in part["records"]}
        record.values |= {key: value for key, value in part.items() if key not in ("records", "command")}
    record.values["records"] = in_order(records.values())
    record.write(command=commands(record.values["records"]))


def key_of(row):
    return row["set"], row["most_rows"], row["split"], row["method"]


def in_order(records):
    """By number of rows, set, split and method, whatever was measured first."""
    methods = [*CLASSIFIERS, AFFINE, *REGRESSORS]

    def place(row):
        split = -1 if row["split"] == GIVEN else row["split"]
        return row["most_rows"], SETS.index(row["set"]), split, methods.index(row["method"])

    return sorted(records, key=place)


def processes(workers):
    """A pool of processes of one thread each; the environment of this one is theirs."""
    os.environ.update(ALONE)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker)


def fill(record, pool, missing, num_rows, workers, max_seconds):
    """Fit what is missing, one fit per worker at a time; return how many fits failed and how many are left.

    The record is written after every fit. No fit begins after `max_seconds`.
    """
    start, running, failed, missing = time.monotonic(), {}, 0, list(missing)
    while missing or running:
        is_late = max_seconds is not None and time.monotonic() - start >= max_seconds
        while missing and len(running) < workers and not is_late:
            name, split, method = missing.pop(0)
            running[pool.submit(measure, name, split, method, num_rows)] = (name, split, method)
        if not running:
            break
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            name, split, method = running.pop(each)
            try:
                found = each.result()
            except Exception:
                print(f"{name}, split {split}, {method} failed:", file=sys.stderr)
                traceback.print_exc()
                failed += 1
                continue
            row = {"set": name, "most_rows": num_rows, "split": split, "method": method, **found}
            records = record.values["records"] = in_order([*record.values["records"], row])
            record.write(command=commands(records))
            print({key: value for key, value in row.items() if key != "most_rows"}, flush=True)
    return failed, len(missing)


def main():
    parser = command_line(__doc__, "results/defaults.json")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    methods = dict.fromkeys((*CLASSIFIERS, AFFINE, *REGRESSORS))
    parser.add_argument("--methods", nargs="+", choices=methods)
    parser.add_argument("--rows", type=int, default=5_000, help="the most rows for training")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--as-given", action="store_true", help="the split and the order of the files alone")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--max-seconds", type=float, help="after which no fit begins")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="RECORD", help="records to add to --out")
    arguments = parser.parse_args()
    if arguments.as_given and (without := set(arguments.sets) - set(WITH_TEST_SET)):
        parser.error(f"{', '.join(sorted(without))} without a test set: leave out --as-given.")
    record = Record(arguments.out, {"records": []})
    if arguments.merge is not None:
        merge(record, arguments.merge)
        Console(width=120).print(summarise(record.values["records"]))
        return
    record.values |= {"versions": versions_and_machine()["versions"], "threads": 1}
    known = {key_of(row) for row in record.values["records"]}
    with processes(arguments.workers) as pool:
        missing = cells(arguments, known)
        limits = (arguments.rows, arguments.workers, arguments.max_seconds)
        failed, left = fill(record, pool, missing, *limits)
    Console(width=120).print(summarise(record.values["records"]))
    if failed or left:
        raise SystemExit(f"{failed} fits failed and {left} are left: run the command again.")


if __name__ == "__main__":
    main()
