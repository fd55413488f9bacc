"""Reads the records in results/ and writes results/README.md: every figure there is made by a command.

python benchmarks/summary.py
"""

import argparse
import json
import math
from functools import partial
from pathlib import Path

import answer_summary
import defaults_summary
import machine_summary
import numpy as np
import toolbox_summary

EXPERIMENTS = (
    "airline",
    "digit_pairs",
    "kernel_search",
    "mauna_loa",
    "mnist",
    "recovery",
    "semi_supervised",
    "wide_networks",
)
ORBITS = {"rotation_fixed": "rotation by any angle, not learned"}


def table(headings, rows):
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def spread(values, digits):
    """Mean ± standard error."""
    values = np.array(values, dtype=float)
    text = f"{values.mean():,.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {values.std(ddof=1) / len(values) ** 0.5:,.{digits}f}"


def records_of(record):
    return record if isinstance(record, list) else record["records"]


FORMER = {"semi_supervised": "git checkout 568d46b && "}
"""Experiments that are run by `orbitwise reproduce` today, whose record is of another revision."""


def mnist_command(name, command):
    parts = ["git checkout 9ae0a5c && python -m orbitwise.experiments.mnist"]
    for key in ("data", "orbit", "inducing", "steps", "report", "loo_from"):
        value = command[key]
        value = " ".join(map(str, value)) if isinstance(value, list) else value
        parts.append(f"--{key.replace('_', '-')} {value}")
    return " ".join([*parts, f"--out results/{name}"])


def mnist_defaults(record):
    rows = []
    for seed, each in record["seeds"].items():
        ends = f"{each['num_inducing']:,} ({each['inducing_stopped_by']})"
        numbers = (f"{100 * each['test_error']:.2f}", f"{each['test_log_loss']:.4f}", f"{each['noise']:.2g}")
        rows.append((seed, ends, *numbers, f"{each['log_evidence']:,.0f}", f"{each['seconds']:.0f}"))
    headings = (
        "seed",
        "M (ended by)",
        "test error %",
        "test log loss",
        "noise of labels",
        "bound",
        "seconds",
    )
    errors = [100 * each["test_error"] for each in record["seeds"].values()]
    seeds = "one seed" if len(errors) == 1 else f"{len(errors)} seeds"
    ladder = next(iter(record["seeds"].values()))["leave_one_out_log_losses"]
    losses = ", ".join(f"{loss:.4f} (M = {int(size):,})" for size, loss in ladder.items())
    text = f"{table(headings, rows)}\n\nLeave-one-out log loss of the first seed as M climbs: {losses}."
    return f"test error {spread(errors, 2)} % by the defaults, {seeds}, one H200 GPU", text


def default_times(record):
    rows = [
        (
            row["set"],
            row["method"],
            f"{row['rows']:,}",
            f"{100 * row['error']:.2f}",
            f"{row['log_loss']:.4f}",
            row.get("num_inducing", "–"),
            f"{row['clock_seconds']:.0f}",
        )
        for row in record["records"]
    ]
    headings = ("set", "method", "rows", "test error %", "log loss", "M", "seconds")
    by_method = {}
    for row in record["records"]:
        by_method.setdefault(row["method"], []).append(f"{row['set']} {row['clock_seconds']:.0f} s")
    short = "; ".join(f"{method}: {', '.join(times)}" for method, times in by_method.items())
    return short, table(headings, rows)


def mnist(record):
    rows = []
    for row in record["curve"]:
        error, loss = f"{100 * row['test_error']:.2f}", f"{row['test_log_loss']:.4f}"
        held_out = f"{100 * row['leave_one_out_error']:.2f}"
        cells = (row["noise_by"], f"{row['noise']:.2g}", held_out, error, loss, f"{row['seconds']:.0f}")
        rows.append((f"{row['num_inducing']:,}", *cells))
    headings = ("M", "noise by", "noise", "leave-one-out error %", "test error %", "test log loss", "seconds")
    text = table(headings, rows)
    learned = record["stages"][-1]["orbit"]
    if learned:
        ranges = ", ".join(f"{name} {high:.3f}" for name, (_, high) in learned.items())
        text += f"\n\nUpper ends of the ranges: {ranges}. (π is {math.pi:.3f}; angles are in radians.)"
    last = record["curve"][-2:] if len(record["curve"]) > 1 else record["curve"]
    errors = ", ".join(f"{100 * row['test_error']:.2f} % (noise by {row['noise_by']})" for row in last)
    headline = f"test error {errors} with {last[-1]['num_inducing']:,} inducing points"
    if "angle" in learned:
        how = "fixed at" if record["orbit"] == "rotation_fixed" else "learned as"
        headline += f"; angle {how} ±{learned['angle'][1]:.3f} rad"
    note = "Seconds count from the start of training, on one GPU; one seed. The module of that revision drove"
    return headline, f"{text}\n\n{note} the engines by hand; today it calls the classifier."


def digits(record):
    rows, losses = [], {}
    for name in dict.fromkeys(row["method"] for row in records_of(record)):
        runs = [row for row in records_of(record) if row["method"] == name]
        evidence = [row["log_evidence"] for row in runs if "log_evidence" in row]
        error = spread([100 * row["error"] for row in runs], 2)
        losses[name] = spread([row["log_loss"] for row in runs], 4)
        seconds = spread([row["seconds"] for row in runs], 0)
        rows.append((name, len(runs), error, losses[name], spread(evidence, 0) if evidence else "–", seconds))
    headings = ("method", "splits", "test error %", "log loss", "log evidence", "seconds")
    note = "Mean ± standard error over splits; 1,000 images for training, 797 for testing."
    names = ("orbitwise affine+deformation", "support vectors", "gpytorch dirichlet")
    headline = "log loss " + ", ".join(f"{losses[name]} ({name})" for name in names if name in losses)
    return headline, f"{table(headings, rows)}\n\n{note}"


def codings(record):
    rows, losses = [], []
    for name, coding in dict.fromkeys((row["set"], row["coding"]) for row in records_of(record)):
        runs = [row for row in records_of(record) if (row["set"], row["coding"]) == (name, coding)]
        error = spread([100 * row["error"] for row in runs], 2)
        loss = spread([row["log_loss"] for row in runs], 3)
        held_out = spread([row["leave_one_out_log_loss"] for row in runs], 3)
        surest = f"{max(row['surest_mistake'] for row in runs):.3f}"
        losses += [f"{loss} ({coding})"] if name == "digits" else []
        seconds = spread([row["seconds"] for row in runs], 0)
        rows.append((name, coding, len(runs), error, loss, held_out, surest, seconds))
    headings = ("set", "coding", "splits", "test error %", "log loss", "leave-one-out log loss")
    headings += ("surest mistake", "seconds")
    note = "Mean ± standard error over splits, no invariance. Rows for training: 300 of digits and USPS, "
    note += '1,000 of "large" (digits), two thirds of the others. The surest mistake is the largest '
    note += "probability of a class that was wrong."
    return f"log loss of 300 digits {', '.join(losses)}", f"{table(headings, rows)}\n\n{note}"


def orbit_gram(record):
    cases = record["cases"]
    rows = [
        (
            f"{each['rows']:,}",
            each["nodes"],
            each["width"],
            each["precision"],
            f"{each['seconds']:.2f}",
            f"{each['ratio']:.2f}",
            "out of memory" if each.get("plain") is None else f"{each['plain'] / each['seconds']:.1f}",
            f"{each['bytes'] / 2**20:,.0f}",
        )
        for each in cases
    ]
    headings = ("rows", "nodes", "width", "precision", "seconds", "times bare products")
    headings += ("a plain average takes times", "MiB")
    worst = max(each["ratio"] for each in cases)
    headline = f"value and gradient take at most {worst:.2f} times the bare products"
    return headline, table(headings, rows)


def group_kernel(record):
    matrix, diagonal = record["seconds"]["matrix"], record["seconds"]["diagonal"]
    rows = [(name, f"{1000 * matrix[name]:,.1f}", f"{1000 * diagonal[name]:,.1f}") for name in matrix]
    text = table(("kernel", "matrix, ms", "diagonal, ms"), rows)
    difference = f"{record['largest_difference_float64']:.1e}"
    sizes = f"{record['num_points']} points, {record['num_elements']} permutations"
    ratios = record["ratios"]["matrix"]["orbitwise, FunctionalKernel"]
    headline = f"matrix {ratios['isotropic_over_ours']:.1f} times as fast as with `is_isotropic=True`, "
    headline += f"{ratios['default_over_ours']:.0f} times as by default"
    return headline, f"{text}\n\n{sizes}; largest difference of the kernels {difference}."


def molecule_forces(record):
    rows = []
    for molecule, found in record["molecules"].items():
        for name in ("orbitwise", "sgdml"):
            row = found[name]
            errors = f"{row['energy_error']:.4f}", f"{row['force_error']:.4f}"
            times = f"{row['learn_seconds']:.1f}", f"{row['predict_seconds']:.2f}"
            rows.append((molecule, name, row["num_exchanges"], *errors, *times))
    headings = ("molecule", "by", "exchanges", "energy error", "force error", "learning, s", "predicting, s")
    note = f"{record['num_train']} geometries; mean absolute errors of {record['num_test']:,} others in "
    note += (
        "kcal/mol and kcal/mol/Å. Nothing is set; seconds are those of the processor, and predictions are "
    )
    note += f"energies and forces. sgdml sees {record['num_valid_of_sgdml']} more geometries, for validation."
    errors = []
    for molecule, found in record["molecules"].items():
        ours, theirs = (found[name]["force_error"] for name in ("orbitwise", "sgdml"))
        errors.append(f"{molecule} {ours:.3f} compared with {theirs:.3f}")
    ratios = [found["ours_over_sgdml"]["predict_seconds"] for found in record["molecules"].values()]
    headline = f"force errors {', '.join(errors)} kcal/mol/Å; "
    headline += f"predictions take {min(ratios):.2f} to {max(ratios):.2f} times as long"
    return headline, f"{table(headings, rows)}\n\n{note}"


def sparse_regression(record):
    rows = [
        (
            row["method"],
            f"{row['titsias']:,.0f}",
            f"{row['tight']:,.0f}",
            f"{row['rmse']:.3f}",
            f"{row['seconds']:.0f}",
        )
        for row in records_of(record)
    ]
    by_name = {row["method"]: row for row in records_of(record)}
    ours, others = (
        by_name["orbitwise, bound='titsias'"],
        [n for n in by_name if not n.startswith("orbitwise")],
    )
    beside = ", ".join(
        f"{row['titsias']:,.0f} in {row['seconds'] / ours['seconds']:.1f} times the time ({row['method']})"
        for row in (by_name[name] for name in others)
    )
    note = f"{record['rows']:,} rows of protein, split {record['split']}, M = {record['inducing']}, "
    note += f"{record['iterations']} iterations of L-BFGS; all judged by one function. Standardised targets."
    headings = ("method", "Titsias' bound", "tight bound", "test RMSE", "seconds")
    return f"Titsias' bound {ours['titsias']:,.0f}; {beside}", f"{table(headings, rows)}\n\n{note}"


def sparse_scaling(record):
    rows = [
        (
            f"{row['rows']:,}",
            f"{row['pass_seconds']:.1f}",
            f"{row['rows_a_second']:,.0f}",
            f"{row['seconds']:.0f}",
            f"{row['peak_memory_gib']:.2f}",
            f"{row['rmse']:.4f}",
        )
        for row in records_of(record)
    ]
    last = records_of(record)[-1]
    headline = f"{last['rows']:,} rows with M = {last['inducing']:,}: "
    headline += (
        f"{last['rows_a_second']:,.0f} rows a second and pass, {last['peak_memory_gib']:.1f} GiB at most"
    )
    note = (
        f"Synthetic rows, 8 columns, {last['iterations']} iterations on all rows; {last['threads']} threads; "
    )
    note += "a pass is the bound with its gradient. The noise of the targets has deviation 0.3."
    headings = ("rows", "one pass, s", "rows a second", "whole fit, s", "peak memory, GiB", "test RMSE")
    return headline, f"{table(headings, rows)}\n\n{note}"


def uci_regression(record):
    rows, within = [], []
    for name in dict.fromkeys(row["set"] for row in records_of(record)):
        runs = [row for row in records_of(record) if row["set"] == name]
        exact = [row for row in runs if row["method"] == "exact"]
        for method in dict.fromkeys(row["method"] for row in runs):
            part = [row for row in runs if row["method"] == method]
            known = [row for row in part if "gap" in row]
            stops = sorted({row["stopped"] for row in known})
            rows.append(
                (
                    name,
                    "exact" if method == "exact" else f"sparse, {method}",
                    len(part),
                    f"{part[0]['rows']:,}",
                    spread([row["rmse"] for row in part], 4),
                    spread([row["log_density"] for row in part], 4),
                    f"{np.mean([row['num_inducing'] for row in known]):,.0f}" if known else "–",
                    f"{np.mean([row['gap'] / row['rows'] for row in known]):.4f}" if known else "–",
                    ", ".join(stops) or "–",
                )
            )
            if known and exact:
                within.append(all(_within(part, exact, key) for key in ("rmse", "log_density")))
    headings = (
        "set",
        "method",
        "splits",
        "rows",
        "test RMSE",
        "log density",
        "M",
        "gap a row, nats",
        "ended by",
    )
    note = "Mean ± standard error over splits. Tolerance 0.01 nats a row, M at most 8,192 (protein 2,000)."
    headline = (
        f"automatic M within one standard error of exact inference on {sum(within)} of {len(within)} sets"
    )
    return headline, f"{table(headings, rows)}\n\n{note}"


def _within(part, exact, key):
    """Whether the means differ by no more than the standard error of the exact one."""
    values = np.array([row[key] for row in exact])
    error = values.std(ddof=1) / len(values) ** 0.5
    return abs(np.mean([row[key] for row in part]) - values.mean()) <= error


def noise_of_labels(record):
    ways = ("evidence", "leave_one_out", "auto")
    rows, leads = [], []
    for name in dict.fromkeys(row["set"] for row in records_of(record)):
        runs = [row["ways"] for row in records_of(record) if row["set"] == name]
        losses = [spread([run[way]["log_loss"] for run in runs], 3) for way in ways]
        errors = [f"{100 * np.mean([run[way]['error'] for run in runs]):.1f}" for way in ways]
        leads.append(np.mean([run["auto"]["log_loss"] - run["evidence"]["log_loss"] for run in runs]))
        rows.append((name, len(runs), *losses, *errors))
    headings = ("set", "splits", *(f"log loss, {way}" for way in ways), *(f"error %, {way}" for way in ways))
    short = f'"auto" changes the log loss of "evidence" by {min(leads):+.3f} to {max(leads):+.3f}'
    return short, table(headings, rows)


SUMMARIES = (answer_summary, defaults_summary, machine_summary, toolbox_summary)
KINDS = {
    **{
        name: (title, partial(show, table=table))
        for summary in SUMMARIES
        for name, (title, show) in summary.KINDS.items()
    },
    "sparse_regression.json": ("Sparse regression compared with GPflow and GPyTorch", sparse_regression),
    "sparse_scaling.json": ("Cost of sparse regression against rows", sparse_scaling),
    "uci_regression.json": ("Automatic inducing variables compared with exact inference", uci_regression),
    "digits.json": ("8×8 digits compared with other classifiers", digits),
    "mnist_defaults.json": ("MNIST by the defaults of InvariantGPClassifier", mnist_defaults),
    "mnist_rotated_defaults.json": (
        "MNIST turned by 0–360° by the defaults of InvariantGPClassifier",
        mnist_defaults,
    ),
    "default_times.json": ("What the classifier's defaults take and reach on two cores", default_times),
    "noise_of_labels.json": ("By what the noise of labels is chosen", noise_of_labels),
    "codings.json": ("Likelihoods of class labels on small sets", codings),
    "orbit_gram.json": ("Averaged Gram matrices compared with bare products", orbit_gram),
    "group_kernel.json": ("Invariant kernels compared with `invariantkernels`", group_kernel),
    "molecule_forces.json": ("Energies and forces compared with `sgdml`", molecule_forces),
}


SEVERAL_RECORDS = ("answer", "comparison_order")
"""Benchmarks that write a record for each of several settings."""


def section(path):
    """(file, title, command, headline, text) of one record, or None for a form not known here."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if path.name in KINDS:
        title, show = KINDS[path.name]
        command = record.get("command") if isinstance(record, dict) else None
        if isinstance(record, dict) and record.get("threads"):
            title += f" ({record['threads']} {'threads' if record['threads'] > 1 else 'thread'})"
        module = path.stem.removesuffix("_fresh").removesuffix("_defaults").removesuffix("_rotated")
        if module in EXPERIMENTS:
            command = f"python -m orbitwise.experiments.{module}{options(record)} --out results/{path.name}"
            command = FORMER.get(module, "") + command
        if scripts := [each for each in SEVERAL_RECORDS if path.stem.startswith(each)]:
            command = f"python benchmarks/{scripts[0]}.py{settings_of(record)} --out results/{path.name}"
        return path.name, title, (command or f"python benchmarks/{path.stem}.py").strip(), *show(record)
    if isinstance(record, dict) and "curve" in record:
        names = {"rotated": "Rotated MNIST", "rotated_12000": "Rotated MNIST, 12,000 images"}
        data = names.get(record["data"], "MNIST")
        orbit = ORBITS.get(record["orbit"], record["orbit"])
        title = f"{data}, invariance: {orbit}"
        return path.name, title, mnist_command(path.name, record["command"]), *mnist(record)
    return None


def settings_of(record):
    """The settings of a benchmark that wrote several records, as options of its command."""
    problems = list(dict.fromkeys(each["problem"] for each in record.get("fits", ())))
    settings = ({"problems": problems} if problems else {}) | record["settings"]
    settings = {name: value for name, value in settings.items() if value is not None and value is not False}
    return options({"command": settings})


def options(record):
    """The options of an experiment as recorded: all of them, or those that differ from defaults."""
    settings = record.get("command") or {
        name: record[name]
        for name, usual in (("device", "cpu"), ("scoring", "bic"), ("shift", 0))
        if record.get(name, usual) != usual
    }
    words = [("--" + name.replace("_", "-"), value) for name, value in settings.items()]
    return "".join(
        f" {name} {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in words
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    folder = parser.parse_args().results
    found = {path: section(path) for path in sorted(folder.glob("*.json"))}
    sections = [part for part in found.values() if part is not None]
    for path in (path for path, part in found.items() if part is None):
        print(f"left out {path}: no summary for its form")
    rows = [(f"[{name}]({name})", title, headline) for name, title, _, headline, _ in sections]
    parts = ["# Results", "Written by `python benchmarks/summary.py` from the files beside it, not by hand."]
    parts.append(table(("file", "what", "in short"), rows))
    for name, title, command, _, text in sections:
        parts += [f"## {title}", f"[{name}]({name}), made by", f"    {command}", text]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
