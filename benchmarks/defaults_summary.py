"""Tables of the default estimators beside others, for results/README.md, with the sets where ours lose."""

import numpy as np

OURS = ("InvariantGPClassifier", "InvariantGPClassifier(affine)", "InvariantGPRegressor", "SparseGPRegressor")
OTHERS = {"classification": "SVC", "regression": "scikit-learn GP"}
MEASURES = {"classification": ("error", "log_loss"), "regression": ("rmse", "log_density")}
TIE = 0.001
"""Standard deviations or nats that rounding of optimisers may cost."""


def defaults(record, table):
    runs = {}
    for row in record["records"]:
        kind = "the first" if row["split"] == "given" else "at most"
        runs.setdefault((kind, row["most_rows"]), []).append(row)
    found = {f"{kind} {size:,} rows": _of_run(runs[kind, size], table) for kind, size in sorted(runs)}
    headline = "; ".join(f"{name}: {lines}" for name, (lines, _) in found.items())
    texts = [f"### {name[0].upper()}{name[1:]} for training\n\n{text}" for name, (_, text) in found.items()]
    note = (
        "Means over splits; differences are ours less theirs, with the standard error of paired differences "
        "over splits. RMSE is in standard deviations of the targets, and densities are of targets in that "
        "unit. Errors, RMSE and log density count as lost where they are worse by more than one standard "
        f"error and {TIE}, a log loss where it is worse at all. Seconds are those of the processor. The "
        "first rows are those of the files, with all of their test set."
    )
    return headline, "\n\n".join([*texts, note])


def _of_run(kept, table):
    """(headline, text) of the records of one number of rows."""
    texts, headlines = [], []
    for task, other in OTHERS.items():
        keys = MEASURES[task]
        rows, lost, counts = [], {}, {}
        for name in dict.fromkeys(row["set"] for row in kept if keys[0] in row):
            runs = {}
            for row in kept:
                if row["set"] == name:
                    runs.setdefault(row["method"], {})[row["split"]] = row
            for method, splits in runs.items():
                rows.append((name, method, len(splits), *_cells(splits, runs, method, other, keys)))
                if method not in OURS:
                    continue
                counts[method] = counts.get(method, 0) + 1
                worse = [_worse(splits, runs.get(other, {}), key) for key in keys]
                lost.setdefault(method, []).extend(
                    f"{name} ({_words(key)} by {by:.3g} ± {error:.2g})"
                    for key, (by, error) in zip(keys, worse, strict=True)
                    if by > (0.0 if key == "log_loss" else max(error, TIE))
                )
                boosted = _worse(splits, runs.get("boosting", {}), keys[0])[0]
                if boosted > 0:
                    lost.setdefault(f"{method}, to boosting", []).append(f"{name} ({_words(keys[0])})")
        for method, count in counts.items():
            names = {each.partition(" ")[0] for each in lost[method]}
            headlines.append(f"{method} loses nowhere to {other} on {count - len(names)} of {count} sets")
        headings = ("set", "method", "splits", *map(_words, keys), f"less those of {other}", "seconds")
        parts = [table(headings, rows)]
        for method in counts:
            parts.append(f"{method} loses to {other} on: {'; '.join(lost[method]) or 'no set'}.")
            beaten = lost.get(f"{method}, to boosting", [])
            parts.append(f"{method} loses to gradient boosting on: {'; '.join(beaten) or 'no set'}.")
        texts.append("\n\n".join(parts))
    return "; ".join(headlines), "\n\n".join(texts)


def _words(key):
    return {"error": "test error %", "log_loss": "log loss", "rmse": "RMSE", "log_density": "log density"}[
        key
    ]


def _worse(ours, theirs, key):
    """How much worse ours are on the splits of both, with the standard error over splits."""
    sign = -1 if key == "log_density" else 1
    factor = 100 if key == "error" else 1
    gaps = np.array([factor * sign * (ours[s][key] - theirs[s][key]) for s in ours if s in theirs])
    if len(gaps) == 0:
        return np.nan, np.nan  # not measured yet
    return gaps.mean(), gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0


def _cells(splits, runs, method, other, keys):
    cells = []
    for key in keys:
        digits = 2 if key == "error" else 4
        known = [row[key] * (100 if key == "error" else 1) for row in splits.values() if key in row]
        cells.append(f"{np.mean(known):.{digits}f}" if known else "–")
    cells.append("–")
    if method in OURS:
        gaps = [(key, *_worse(splits, runs.get(other, {}), key)) for key in keys]
        cells[-1] = ", ".join(
            f"{by * (-1 if key == 'log_density' else 1):+.3f} ± {error:.3f}" for key, by, error in gaps
        )
    return *cells, f"{np.mean([row['seconds'] for row in splits.values()]):.1f}"


KINDS = {"defaults.json": ("Default estimators beside what people would use otherwise", defaults)}
