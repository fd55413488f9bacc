"""Sections of results/README.md on learned ranges: whether they are found again, and whether they agree."""

import math


def recovery(record, table):
    summary = record["summary"]
    drawn, images = [], []
    for name, problem in summary["problems"].items():
        for move, found in problem["ranges"].items():
            learned = [_shown(move, found[key]) for key in ("truth", "median", "median_error")]
            ends = f"{_shown(move, found['least'])} to {_shown(move, found['most'])}"
            cells = (name, move, problem["fits"], *learned, ends)
            if problem["part"] == "model":
                drawn.append((*cells, f"{100 * found['coverage']:.0f}"))
            else:
                bias, low = _shown(move, found["bias"]), _shown(move, found["least_low"])
                images.append((*cells, bias, low))
    headings = ("problem", "range", "fits", "truth", "learned (median)", "stated error", "least to most")
    parts, headline = [], "no targets drawn from the model"
    if drawn:
        pooled = summary["pooled"]
        share = f"{100 * pooled['coverage']:.0f} % of {pooled['intervals']} intervals of 95 % hold the truth"
        headline = f"{share}; median half-width {100 * pooled['median_half_width']:.0f} % of the range"
        parts += [
            "Targets drawn from the model itself:",
            table((*headings, "% of intervals that hold it"), drawn),
            f"{headline}. The root mean square of (learned - truth)/error, where the truth is not zero, is "
            f"{pooled['root_mean_square_z']:.2f}.",
        ]
    if images:
        more = ("bias", "least lower end of an interval")
        parts += ["Labels of real images that were moved:", table((*headings, *more), images)]
    note = "Angles are in degrees, shifts of images in fractions of half an image, scales in logarithms."
    return headline, "\n\n".join([*parts, note])


def rotated_order(record, table):
    rows = [
        (
            f"{pair['first']}, {pair['second']}",
            f"{pair['lead_at_half']:,.0f}",
            f"{pair['lead']:,.0f} ± {pair['standard_error']:.0f}",
            f"undecided ({pair['undecided_by']})" if pair["undecided_by"] else "decided",
            ", ".join(f"{100 * each:.2f}" for each in pair["test_errors"]),
        )
        for pair in record["pairs"]
    ]
    decided = [pair for pair in record["pairs"] if pair["undecided_by"] is None]
    agreeing = sum(pair["agrees"] for pair in decided)
    headline = f"{agreeing} of {len(decided)} decided pairs agree with the test errors"
    headings = ("pair", "lead at 4,000", "lead at 8,000", "verdict", "test errors, %")
    return f"{headline}, {len(rows) - len(decided)} undecided", table(headings, rows)


def comparison_order(record, table):
    rows = []
    for each in record["comparisons"]:
        names = " > ".join(found["name"] for found in each["candidates"])
        errors = ", ".join(f"{100 * found['test_error']:.2f}" for found in each["candidates"])
        rows.append((each["problem"], each["seed"], each["draw"], names, errors, each["verdict"]))
    headline = []
    for name, found in record["summary"].items():
        same = "the same" if found["same_order_for_every_seed"] else "not the same"
        headline.append(
            f"{name}: {same} order for every seed, {found['families_behind_a_member']} families behind a "
            f"member, {found['decided_pairs_against_test_errors']} decided pairs against test errors"
        )
    headings = ("problem", "seed", "draw of rows", "order by evidence", "test errors, %", "verdict")
    return "; ".join(headline), table(headings, rows)


def _shown(move, value):
    return f"{math.degrees(value):.1f}" if move == "angle" else f"{value:.3f}"


def answer(record, table):
    rows, headline = [], []
    for name, kinds in record["summary"].items():
        for kind, those in kinds.items():
            least = [f"{those[key]:,.0f}" for key in sorted(those) if key.startswith("least_evidence_")]
            rows.append(
                (
                    name,
                    f"{those['fits']} {kind}",
                    f"{those['evidence_spread_per_row']:.4f}",
                    f"{those['largest_difference_in_errors']:.2f}",
                    those["undetermined"],
                    those["wide_errors"],
                    " and ".join(least),
                    f"{100 * those['largest_test_error']:.2f}",
                    f"{those['largest_log_loss']:.4f}",
                    f"{those['median_seconds']:.0f}",
                )
            )
        kind = max(kinds, key=lambda each: kinds[each]["fits"])
        apart, fits = kinds[kind]["largest_difference_in_errors"], kinds[kind]["fits"]
        headline.append(f"{name}: ranges of {fits} {kind} differ by at most {apart:.1f} stated errors")
    headings = (
        "problem",
        "fits",
        "spread of evidence per row",
        "largest difference of ranges, stated errors",
        "undetermined ranges",
        "wide errors",
        "least evidence on common nodes",
        "largest test error %",
        "largest log loss",
        "seconds",
    )
    missed = [f"{name}, {each}" for name, those in record["missed"].items() for each in those]
    note = "Bars that are missed: " + ("; ".join(missed) if missed else "none") + "."
    return "; ".join(headline), f"{table(headings, rows)}\n\n{note}"


KINDS = {
    "rotated_order.json": ("Order by bounds and by test errors, rotated MNIST", rotated_order),
    "comparison_order.json": ("Order of invariances by compare: digits and USPS", comparison_order),
    "comparison_order_rotated.json": ("Order of invariances by compare: rotated MNIST", comparison_order),
    "recovery.json": ("Known ranges found again, and how often intervals hold them", recovery),
    "answer_cuda.json": ("Learned answers on other nodes, on a GPU", answer),
    "answer_64_nodes.json": ("Learned answers on other sets of at most 64 nodes", answer),
    "answer_mnist.json": ("Learned answers, 500 images of MNIST", answer),
    "answer.json": ("Learned answers across seeds and across nodes", answer),
}
