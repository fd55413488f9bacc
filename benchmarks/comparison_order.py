"""Does `compare` rank invariances the same way for every seed, and as test errors do?

    python benchmarks/comparison_order.py --device cuda --problems digits usps --seeds 0 1 2
    python benchmarks/comparison_order.py --device cuda --problems rotated --seeds 0 \
        --num-inducing 8000 --out results/comparison_order_rotated.json

Images of digits (300 rows of 8×8, 500 rows of USPS) are compared by exact evidence on common nodes, rotated
MNIST (12,000 rows) by bounds. Seeds also draw other rows, so that orders may differ for a reason. Writes the
record after every comparison; comparisons that it has already are not made again.
"""

import itertools
import json
import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from orbitwise import compare, datasets
from orbitwise.experiments.records import command_line, versions_and_machine, write_record

EXACT = (None, "rotation", "scaling", "shear", "translation", "affine", "affine+deformation")
BOUNDS = (None, "rotation", "affine", "affine+deformation")
PARTS = {
    "affine+deformation": ("affine",),
    "affine": ("none", "rotation", "scaling", "shear", "translation"),
}
"""Which candidates a family contains, so that it may not be behind them."""


def digits(draw):
    found = datasets.load("digits")
    order = np.random.default_rng(draw).permutation(1797)
    x, y = found.x.reshape(-1, 8, 8)[order] / 16, found.y[order]
    return (x[:300], y[:300]), (x[300:], y[300:])


def usps(draw):
    found = datasets.load("usps")
    order = np.random.default_rng(draw).permutation(7291)[:1900]
    x, y = (found.x_train.reshape(-1, 16, 16)[order] + 1) / 2, found.y_train[order]
    return (x[:500], y[:500]), (x[500:], y[500:])


def rotated(draw):
    found = datasets.load("mnist_rot_generated")
    del draw  # all rows for training, always the same
    x, x_test = (each.reshape(-1, 28, 28) / np.float32(255) for each in (found.x_train, found.x_test[:10000]))
    return (x, found.y_train.astype(int)), (x_test, found.y_test[:10000].astype(int))


PROBLEMS = {"digits": (digits, EXACT), "usps": (usps, EXACT), "rotated": (rotated, BOUNDS)}


def run(name, seed, draw, arguments):
    """One comparison, with the errors that its candidates make on other rows."""
    load, invariances = PROBLEMS[name]
    (x, y), (x_test, y_test) = load(draw)
    settings = {"device": arguments.device, "random_state": seed}
    if arguments.quick:
        x, y, x_test, y_test = x[:50], y[:50], x_test[:50], y_test[:50]
        settings |= {"max_nodes": 8, "inference": "exact"}
    elif name == "rotated":
        settings |= {"num_inducing": arguments.num_inducing, "num_steps": arguments.num_steps}
    start = time.perf_counter()
    comparison = compare(x, y, invariances, **settings)
    seconds = time.perf_counter() - start
    candidates = []
    for each in comparison.candidates:
        probabilities = each.estimator.predict_proba(x_test)
        classes = each.estimator.classes_
        candidates.append(
            {
                "name": each.name,
                "score": each.score,
                "log_evidence": each.log_evidence,
                "log_evidence_error": each.standard_error,
                "difference": each.difference,
                "difference_error": each.difference_error,
                "half_bound": each.half_bound,
                "converged": bool(each.estimator.converged_),
                "learned": each.learned,
                "test_error": float(np.mean(classes[probabilities.argmax(1)] != y_test)),
                "log_loss": float(log_loss(y_test, probabilities, labels=classes)),
                "seconds": each.seconds,
            }
        )
    return {
        "problem": name,
        "seed": seed,
        "draw": draw,
        "rows": len(x),
        "num_nodes": comparison.num_nodes,
        "best": comparison.best.name,
        "tied": list(comparison.tied),
        "undecided": list(comparison.undecided),
        "verdict": comparison.verdict,
        "candidates": candidates,
        "wrong_families": families_behind(comparison),
        "decided_against_test_errors": against_test_errors(comparison, candidates, len(x_test)),
        "seconds": seconds,
    }


def families_behind(comparison):
    """Families that are behind one of their members by more than two standard errors of the difference."""
    by_name = {each.name: each for each in comparison.candidates}
    found = []
    for family, members in PARTS.items():
        for member in members:
            if family in by_name and member in by_name:
                lead = comparison.difference(by_name[family], by_name[member])
                if lead.nats < -max(2 * lead.error, 0.1):
                    found.append({"family": family, "member": member, "nats": lead.nats, "error": lead.error})
    return found


def against_test_errors(comparison, candidates, num_test):
    """Pairs that the evidence decides one way, and test errors the other way by two standard errors."""
    errors = {each["name"]: each["test_error"] for each in candidates}
    found = []
    for first, second in itertools.combinations(comparison.candidates, 2):
        lead, pair = comparison.difference(first, second), (errors[first.name], errors[second.name])
        spread = (sum(error * (1 - error) for error in pair) / num_test) ** 0.5
        is_decided = lead.doubt is None and not lead.is_tie
        if is_decided and (pair[1] - pair[0]) * np.sign(lead.nats) < -2 * spread:
            found.append({"ahead": first.name, "of": second.name, "nats": lead.nats, "test_errors": pair})
    return found


def order_of(found):
    return [each["name"] for each in found["candidates"]]


def summarise(comparisons):
    """Whether all seeds of the same rows gave the same order, and all draws of rows the same winner."""
    summary = {}
    for name in dict.fromkeys(each["problem"] for each in comparisons):
        those = [each for each in comparisons if each["problem"] == name]
        draws = {each["draw"]: [] for each in those}
        for each in those:
            draws[each["draw"]].append(order_of(each))
        summary[name] = {
            "comparisons": len(those),
            "same_order_for_every_seed": all(
                order == orders[0] for orders in draws.values() for order in orders
            ),
            "best": sorted({each["best"] for each in those}),
            "families_behind_a_member": sum(len(each["wrong_families"]) for each in those),
            "decided_pairs_against_test_errors": sum(
                len(each["decided_against_test_errors"]) for each in those
            ),
        }
    return summary


def show(record):
    console = Console(width=150)
    for each in record["comparisons"]:
        table = Table(
            title=f"{each['problem']}, seed {each['seed']}, draw {each['draw']}, {each['seconds']:.0f} s",
            caption=each["verdict"],
        )
        for heading in ("invariance", "evidence", "behind the leader", "test error %", "log loss", "seconds"):
            table.add_column(heading)
        for found in each["candidates"]:
            table.add_row(
                found["name"],
                f"{found['log_evidence']:,.1f} ± {found['log_evidence_error']:.1f}",
                f"{-found['difference']:,.1f} ± {found['difference_error']:.1f}",
                f"{100 * found['test_error']:.2f}",
                f"{found['log_loss']:.4f}",
                f"{found['seconds']:.0f}",
            )
        console.print(table)
    console.print(record["summary"])


def main():
    parser = command_line(__doc__, "results/comparison_order.json")
    parser.add_argument("--problems", nargs="+", choices=tuple(PROBLEMS), default=["digits", "usps"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="random_state of the fits")
    parser.add_argument("--draws", type=int, nargs="+", default=[0], help="other rows, with the first seed")
    parser.add_argument("--num-inducing", type=int, default=8000, help="of rotated MNIST")
    parser.add_argument("--num-steps", type=int, help="of rotated MNIST; by default until they settle")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="50 rows and 8 nodes, to see that all works")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    record = {
        "settings": {name: value for name, value in vars(arguments).items() if name != "out"},
        "versions": versions_and_machine()["versions"],
        "comparisons": [],
    }
    if arguments.out.is_file():
        record["comparisons"] = json.loads(arguments.out.read_text(encoding="utf-8"))["comparisons"]
    first = arguments.draws[0]
    runs = [(seed, first) for seed in arguments.seeds]
    runs += [(arguments.seeds[0], draw) for draw in arguments.draws[1:]]
    for name in arguments.problems:
        for seed, draw in runs:
            known = {(each["problem"], each["seed"], each["draw"]) for each in record["comparisons"]}
            if (name, seed, draw) not in known:
                record["comparisons"].append(run(name, seed, draw, arguments))
                record["summary"] = summarise(record["comparisons"])
                write_record(record, arguments.out)
    show(record)


if __name__ == "__main__":
    main()
