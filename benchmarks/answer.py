"""How far can learned ranges be trusted? Digits, USPS and shifted signals, all settings at their defaults.

    python benchmarks/answer.py --device cuda --seeds 0 1 2 3 4 --scrambles 0 1 2

Every fit is judged on nodes that no fit uses. The nodes of a fit do not depend on its seed, so fits with
several seeds agree. Other scrambles of the nodes are a stronger test: ranges that were learned on other nodes
should differ by no more than the stated errors. Writes results/answer.json after every fit; a run that was
stopped resumes with the missing fits.
"""

import itertools
import json
import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from orbitwise import InvariantGPClassifier, datasets
from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.experiments.recovery import learned_ranges
from orbitwise.functionals import averages
from orbitwise.functionals.averages import freeze_functional, num_dimensions
from orbitwise.orbits.certainty import SAMPLES, Certainty, image_units
from orbitwise.orbits.nodes import MOST_GAUSS_DIMENSIONS
from orbitwise.orbits.signals import SignalOrbit

COMMON_NODES = (128, 256)
COMMON_SCRAMBLE = 99
APART = 1000
"""Between the seeds of two scrambles: a fit takes the first and a few that follow it."""
LENGTH, TRUE_SHIFT, SIGNAL_NOISE = 32, 4.0, 0.5

BARS = {
    "evidence_spread_per_row": ("<=", 0.06),
    "largest_difference_in_errors": ("<=", 3.0),
    "undetermined": ("<=", 1),
    "wide_errors": ("<=", 0),
}
BARS_OF = {"digits": {"least_evidence_128": (">=", 2450)}, "usps": {"largest_test_error": ("<=", 0.03)}}


def digits():
    found = datasets.load("digits")
    order = np.random.default_rng(0).permutation(1797)
    x, y = found.x.reshape(1797, -1)[order] / 16, found.y[order]
    return (x[:300], y[:300]), (x[300:], y[300:]), {"invariance": "affine", "image_shape": (8, 8)}


def usps():
    found = datasets.load("usps")
    order = np.random.default_rng(0).permutation(7291)[:1900]
    x, y = (found.x_train.reshape(7291, -1)[order] + 1) / 2, found.y_train[order]
    return (x[:500], y[:500]), (x[500:], y[500:]), {"invariance": "affine", "image_shape": (16, 16)}


def mnist():
    found = datasets.load("mnist")
    order = np.random.default_rng(0).permutation(60000)[:2500]
    x, y = found.x_train.reshape(60000, -1)[order] / 255, found.y_train[order]
    return (x[:500], y[:500]), (x[500:], y[500:]), {"invariance": "affine", "image_shape": (28, 28)}


def signals():
    """Two periodic shapes that differ in the phase of one harmonic, each moved within ± `TRUE_SHIFT`."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 1000)
    time = np.arange(LENGTH) - generator.uniform(-TRUE_SHIFT, TRUE_SHIFT, (1000, 1))
    angle = 2 * np.pi * time / LENGTH
    x = np.cos(angle) + np.cos(2 * angle + np.pi / 2 * y[:, None]) + 0.5 * np.cos(3 * angle)
    x += SIGNAL_NOISE * generator.normal(size=x.shape)
    orbit = SignalOrbit(LENGTH, shift=1.0, boundary="wrap")
    return (x[:200], y[:200]), (x[200:], y[200:]), {"invariance": orbit}


PROBLEMS = {"digits": digits, "usps": usps, "signals": signals, "mnist": mnist}


@torch.no_grad()
def common_evidence(model, num_nodes):
    """The log evidence of what was learned on nodes that no fit uses."""
    functional = model.model_.latent.functional
    dimensions = num_dimensions(functional)
    if dimensions is not None and dimensions <= MOST_GAUSS_DIMENSIONS:
        # Gauss nodes of one more are all different
        frozen = freeze_functional(functional, num_nodes + 1, rule="gauss")
    else:
        seed = COMMON_SCRAMBLE * APART
        frozen = freeze_functional(functional, num_nodes, torch.Generator().manual_seed(seed))
    return model.evidence_on(lambda _: frozen)


def fit(name, seed, scramble, arguments):
    """One fit with all that is to be known of it."""
    (x, y), (x_test, y_test), settings = PROBLEMS[name]()
    if arguments.quick:
        x, y, x_test, y_test = x[:60], y[:60], x_test[:50], y_test[:50]
    model = InvariantGPClassifier(
        **settings, max_nodes=arguments.max_nodes, device=arguments.device, random_state=seed
    )
    first = averages.FIRST_SCRAMBLE
    averages.FIRST_SCRAMBLE = first + APART * scramble
    start = time.perf_counter()
    try:
        model.fit(x, y)
    finally:
        averages.FIRST_SCRAMBLE = first
    seconds = time.perf_counter() - start
    probabilities = model.predict_proba(x_test)
    found = {
        "problem": name,
        "seed": seed,
        "scramble": scramble,
        "rows": len(x),
        "image_size": settings["image_shape"][0] if "image_shape" in settings else None,
        "log_evidence": model.log_evidence_,
        "log_evidence_error": model.log_evidence_error_,
        "common_evidence": {nodes: common_evidence(model, nodes) for nodes in arguments.common_nodes},
        "test_error": float(np.mean(model.classes_[probabilities.argmax(1)] != y_test)),
        "log_loss": float(log_loss(y_test, probabilities, labels=model.classes_)),
        "ranges": learned_ranges(model),
        "num_nodes": model.search_[-1]["num_nodes"],
        "stages": model.search_,
        "stopped_by": model.stopped_by_,
        "converged": bool(model.converged_),
        "seconds": seconds,
    }
    return found | {"undetermined": undetermined(found)}


def undetermined(fit):
    """The ranges that the data do not determine, according to the report."""
    size = fit["image_size"]
    units = {"shift": SAMPLES} if size is None else image_units((1, size, size))
    return [
        name
        for name, found in fit["ranges"].items()
        if not Certainty(
            name,
            units[name],
            (-found["learned"], found["learned"]),
            found["error"],
            (found["low"], found["high"]),
        ).is_determined
    ]


def differences(fits):
    """|a - b| of every range and pair of fits, in the smaller of their two stated errors."""
    return {
        name: max(
            (_apart(a["ranges"][name], b["ranges"][name]) for a, b in itertools.combinations(fits, 2)),
            default=0.0,
        )
        for name in fits[0]["ranges"]
    }


def _apart(first, second):
    difference = abs(first["learned"] - second["learned"])
    error = min(first["error"], second["error"])
    return difference / error if error > 0 else (0.0 if difference < 1e-9 else 1e9)


def held(fits):
    """How many of the 95 % intervals hold the range that another fit learned."""
    pairs = [
        (a["ranges"][name], b["ranges"][name]["learned"])
        for a, b in itertools.permutations(fits, 2)
        for name in a["ranges"]
    ]
    return float(np.mean([each["low"] <= other <= each["high"] for each, other in pairs])) if pairs else None


def is_wide(found, image_size):
    """Whether an error is above 30 % of its range and, for images, above half a pixel at the edge."""
    beyond = found["error"] > 0.3 * found["learned"]
    return bool(beyond and (image_size is None or found["error"] * image_size / 2 > 0.5))


def summarise(fits):
    """The bars of one problem, over seeds with the nodes of every fit, and over scrambles of the nodes."""
    summary = {}
    kinds = {
        "seeds": [each for each in fits if each["scramble"] == 0],
        "scrambles": list({each["scramble"]: each for each in reversed(fits)}.values()),
    }
    for kind, those in kinds.items():
        if not those:
            continue
        evidence = {
            nodes: [each["common_evidence"][nodes] for each in those] for nodes in those[0]["common_evidence"]
        }
        apart = differences(those)
        summary[kind] = {
            "fits": len(those),
            "evidence_spread_per_row": float(np.ptp(evidence[max(evidence, key=int)])) / those[0]["rows"],
            "largest_difference_in_errors": max(apart.values()),
            "difference_in_errors": apart,
            "intervals_that_hold_other_fits": held(those),
            "undetermined": max(len(each["undetermined"]) for each in those),
            # of all ranges, those that are reported as undetermined among them
            "wide_errors": max(
                sum(is_wide(found, each["image_size"]) for found in each["ranges"].values()) for each in those
            ),
            **{f"least_evidence_{nodes}": min(values) for nodes, values in evidence.items()},
            "largest_test_error": max(each["test_error"] for each in those),
            "largest_log_loss": max(each["log_loss"] for each in those),
            "converged": sum(each["converged"] for each in those),
            "median_seconds": float(np.median([each["seconds"] for each in those])),
        }
    return summary


def misses(name, summary):
    """What does not reach its bar."""
    found = []
    for kind, those in summary.items():
        for key, (sign, bar) in (BARS | BARS_OF.get(name, {})).items():
            value = those.get(key)
            if value is not None and (value > bar if sign == "<=" else value < bar):
                found.append(f"{kind}: {key} {value:.4g}, not {sign} {bar}")
    return found


def judged(fits):
    """The summary of every problem, and what misses its bar."""
    names = dict.fromkeys(each["problem"] for each in fits)
    summary = {name: summarise([each for each in fits if each["problem"] == name]) for name in names}
    return {"summary": summary, "missed": {name: misses(name, summary[name]) for name in names}}


def show(record):
    console = Console(width=150)
    table = Table(title="Learned answers: ± is the stated standard error")
    for heading in ("problem", "seed", "scramble", "evidence", "common nodes", "test error %", "log loss"):
        table.add_column(heading, justify="left" if heading == "problem" else "right")
    table.add_column("ranges")
    table.add_column("nodes, seconds", justify="right")
    for each in record["fits"]:
        common = each["common_evidence"]
        ranges = (f"{name} {r['learned']:.3f} ± {r['error']:.3f}" for name, r in each["ranges"].items())
        table.add_row(
            each["problem"],
            str(each["seed"]),
            str(each["scramble"]),
            f"{each['log_evidence']:,.1f} ± {each['log_evidence_error']:.1f}",
            "\n".join(f"{value:,.1f} ({nodes})" for nodes, value in common.items()),
            f"{100 * each['test_error']:.2f}",
            f"{each['log_loss']:.4f}",
            "\n".join(ranges),
            f"{each['num_nodes']}, {each['seconds']:.0f}" + ("" if each["converged"] else "\nnot converged"),
        )
    console.print(table)
    for name, summary in record["summary"].items():
        missed = record["missed"][name]
        console.print(f"{name}: " + ("; ".join(missed) if missed else "every bar is reached"))
        for kind, those in summary.items():
            console.print(
                f"  {those['fits']} {kind}: "
                f"spread of evidence {those['evidence_spread_per_row']:.4f} per row, "
                f"ranges differ by at most {those['largest_difference_in_errors']:.2f} errors, "
                f"{those['undetermined']} undetermined"
            )


def main():
    parser = command_line(__doc__, "results/answer.json")
    parser.add_argument(
        "--problems", nargs="+", choices=tuple(PROBLEMS), default=["digits", "usps", "signals"]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--scrambles", type=int, nargs="+", default=[0, 1, 2], help="with the first seed")
    parser.add_argument("--common-nodes", type=int, nargs="+", default=list(COMMON_NODES))
    parser.add_argument("--max-nodes", type=int, help="as the classifier's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="60 rows and few nodes, to see that all works")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(seeds=[0, 1], scrambles=[0, 1], common_nodes=[8, 16], max_nodes=16)
    warnings.simplefilter("ignore", ConvergenceWarning)
    settings = {name: value for name, value in vars(arguments).items() if name not in ("out", "problems")}
    record = {
        "settings": settings,
        "threads": torch.get_num_threads(),
        "versions": versions_and_machine()["versions"],
        "fits": [],
    }
    if arguments.out.is_file():
        record = json.loads(arguments.out.read_text(encoding="utf-8"))
        # by the rule of today
        record["fits"] = [each | {"undetermined": undetermined(each)} for each in record["fits"]]
    runs = [(seed, 0) for seed in arguments.seeds]
    runs += [(arguments.seeds[0], scramble) for scramble in arguments.scrambles if scramble]
    for name in arguments.problems:
        for seed, scramble in runs:
            known = {(each["problem"], each["seed"], each["scramble"]) for each in record["fits"]}
            if (name, seed, scramble) in known:
                continue
            record["fits"].append(fit(name, seed, scramble, arguments))
            # JSON files have text for keys
            record["fits"] = json.loads(json.dumps(record["fits"]))
            write_record(record | judged(record["fits"]), arguments.out)
    if record["fits"]:
        write_record(record | judged(record["fits"]), arguments.out)
        show(record | judged(record["fits"]))


if __name__ == "__main__":
    main()
