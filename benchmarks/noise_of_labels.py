"""By what the noise of one-hot codes is chosen: the evidence, leave-one-out, or the better of both.

    python benchmarks/noise_of_labels.py --splits 0 1 2 3 4

Hyperparameters are learned once for each split, by the evidence; then the noise is chosen in each of the
three ways. Tables are halved at random, or 30 rows are for training, with standardised columns. Of digits, as
many images are for training as the name says, and up to 1,000 others for testing. Writes
results/noise_of_labels.json.
"""

import json
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import log_loss

from orbitwise import InvariantGPClassifier, datasets
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

WAYS = ["evidence", "leave_one_out", "auto"]
OWN = {"wine": load_wine, "iris": load_iris, "breast_cancer": load_breast_cancer}
SETS = [
    *(f"digits{size}" for size in (10, 30, 100, 300, 1000)),
    *(f"usps{size}" for size in (30, 100, 300)),
    *(f"{name}{size}" for name in OWN for size in ("30", "half")),
    *(f"uci_{name}" for name in ("heart", "ionosphere", "sonar", "australian", "bupa")),
]


def load(name):
    """Rows, labels, and how many are for training."""
    if name.startswith("digits"):
        X, y = load_digits(return_X_y=True)
        return X / 16, y, int(name[6:])
    if name.startswith("usps"):
        data = datasets.load("usps")
        return data.x_train.reshape(-1, 256), data.y_train, int(name[4:])
    own = name.removesuffix("half").removesuffix("30")
    if own in OWN:
        X, y = OWN[own](return_X_y=True)
    else:
        data = datasets.load(name)
        X, y = data.x, data.y
    return np.asarray(X, dtype=float), y, 30 if name.endswith("30") else len(y) // 2


def measure(name, split):
    X, y, size = load(name)
    order = np.random.default_rng(split).permutation(len(X))
    train, test = order[:size], order[size : size + 1000]
    if not name.startswith(("digits", "usps")):
        spread = X[train].std(0)
        X = (X - X[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    known = np.isin(y[test], y[train])
    test = test[known]
    model = InvariantGPClassifier(noise="evidence", warm_start=True, random_state=split)
    found = {}
    for way in WAYS:
        model.fit(X[train], y[train])
        probabilities = model.predict_proba(X[test])
        found[way] = {
            "error": float((model.classes_[probabilities.argmax(1)] != y[test]).mean()),
            "log_loss": float(log_loss(y[test], probabilities, labels=model.classes_)),
            "held_out_log_loss": model.leave_one_out_log_loss_,
            "noise": model.noise_,
        }
        # the next fits keep what was learned, and choose the noise anew
        model.set_params(noise=WAYS[min(WAYS.index(way) + 1, 2)], max_iterations=0)
    return {"set": name, "split": split, "num_train": len(train), "ways": found}


def main():
    parser = command_line(__doc__, "results/noise_of_labels.json")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sets", nargs="+", default=SETS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    splits = " ".join(map(str, arguments.splits))
    head = {"command": f"python benchmarks/noise_of_labels.py --splits {splits}", **versions_and_machine()}
    records = []
    for name in arguments.sets:
        for split in arguments.splits:
            records.append(measure(name, split))
            print(json.dumps(records[-1]), flush=True)
            write_record({**head, "records": records}, arguments.out)
    table = Table(title="test log loss (error %), mean over splits")
    for heading in ("set", *WAYS):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    for name in arguments.sets:
        rows = [each["ways"] for each in records if each["set"] == name]
        cells = []
        for way in WAYS:
            loss, error = (np.mean([row[way][key] for row in rows]) for key in ("log_loss", "error"))
            cells.append(f"{loss:.3f} ({100 * error:.1f})")
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
