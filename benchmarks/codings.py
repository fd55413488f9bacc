"""Ways to observe class labels, on small sets: one-hot codes, sticks, Dirichlet targets and a softmax.

    python benchmarks/codings.py --splits 0 1 2
    python benchmarks/codings.py --splits 0 --sets large

The same splits for all ways, no invariance, and the defaults of InvariantGPClassifier; columns of tables and
USPS images are standardised by the training rows. The softmax is measured on the sets where it is quick.
USPS and the tables of two classes need ORBITWISE_DATA. Writes results/codings.json after every fit, and goes
on where it ended.
"""

import json
import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from orbitwise import InvariantGPClassifier, datasets
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

CODINGS = ["one_hot", "stick_breaking", "dirichlet", "softmax"]
SETS = {
    "digits": 300,
    "usps": 300,
    "wine": 118,
    "iris": 100,
    "heart": 180,
    "ionosphere": 234,
    "sonar": 138,
    "large": 1000,
}
"""Rows for training; the others are for testing, of USPS 1,000 of the test set. "large" is digits again."""
SLOW = ("digits", "usps", "large")
"""Sets that the softmax is not measured on."""


def rows_of(name, split):
    draw, count = np.random.default_rng(split), SETS[name]
    if name == "usps":
        data = datasets.load("usps")
        train = draw.permutation(len(data.x_train))[:count]
        test = draw.permutation(len(data.x_test))[:1000]
        parts = data.x_train[train].reshape(count, -1), data.x_test[test].reshape(len(test), -1)
        y, y_test = np.asarray(data.y_train)[train], np.asarray(data.y_test)[test]
    else:
        loaders = {"wine": load_wine, "iris": load_iris}
        if name in ("digits", "large"):
            X, labels = load_digits(return_X_y=True)
        elif name in loaders:
            X, labels = loaders[name](return_X_y=True)
        else:
            data = datasets.load(f"uci_{name}")
            X, labels = np.asarray(data.x, dtype=float), np.asarray(data.y)
        order = draw.permutation(len(X))
        train, test = order[:count], order[count:]
        parts, y, y_test = (X[train], X[test]), labels[train], labels[test]
    X, X_test = (np.asarray(part, dtype=float) for part in parts)
    if name not in ("digits", "large"):
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return X, y, X_test, y_test


def measure(name, coding, split):
    X, y, X_test, y_test = rows_of(name, split)
    model = InvariantGPClassifier(likelihood=coding, random_state=split)
    start = time.perf_counter()
    probabilities = model.fit(X, y).predict_proba(X_test)
    seconds = time.perf_counter() - start
    is_wrong = model.classes_[probabilities.argmax(1)] != y_test
    return {
        "set": name,
        "split": split,
        "coding": coding,
        "engine": model.inference_,
        "seconds": seconds,
        "error": float(is_wrong.mean()),
        "log_loss": float(log_loss(y_test, probabilities, labels=model.classes_)),
        "leave_one_out_log_loss": model.leave_one_out_log_loss_,
        "surest_mistake": float(probabilities.max(1)[is_wrong].max(initial=0)),
    }


def main():
    parser = command_line(__doc__, "results/codings.json")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS)[:-1])
    parser.add_argument("--codings", nargs="+", choices=CODINGS, default=CODINGS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    told = versions_and_machine()
    head = {
        "command": "python benchmarks/codings.py --splits 0 1 2",
        "versions": told["versions"],
        "machine": told["machine"],
        "threads": torch.get_num_threads(),
    }
    written = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    records = written.get("records", [])
    there = {(row["set"], row["coding"], row["split"]) for row in records}
    for split in arguments.splits:
        for name in arguments.sets:
            for coding in arguments.codings:
                if (name, coding, split) in there or (coding == "softmax" and name in SLOW):
                    continue
                records.append(measure(name, coding, split))
                print(json.dumps(records[-1]), flush=True)
                write_record({**head, "records": records}, arguments.out)
    table = Table(title="Means over splits")
    for heading in ("set", "coding", "test error %", "log loss", "left out", "seconds"):
        table.add_column(heading, justify="left" if heading in ("set", "coding") else "right")
    keys = ("error", "log_loss", "leave_one_out_log_loss", "seconds")
    for name, coding in dict.fromkeys((row["set"], row["coding"]) for row in records):
        rows = [row for row in records if (row["set"], row["coding"]) == (name, coding)]
        error, loss, left_out, seconds = (np.mean([row[key] for row in rows]) for key in keys)
        table.add_row(name, coding, f"{100 * error:.2f}", f"{loss:.3f}", f"{left_out:.3f}", f"{seconds:.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
