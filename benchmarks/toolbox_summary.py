"""Sections of results/README.md on the Bayesian toolbox: forecasts, kernel search, wide networks."""

HORIZONS = ("5", "10", "20")


def _scores(name, scores):
    cells = []
    for key, digits, factor in (("coverage", 0, 100), ("rmse", 2, 1), ("log_density", 2, 1)):
        cells.append(" / ".join(f"{factor * scores[years][key]:.{digits}f}" for years in HORIZONS))
    return (name, *cells)


def mauna_loa(record, table):
    parts = []
    for start, split in record.items():
        rows = [
            _scores(f"{name}, {way}", model[way]["scores"])
            for name, model in split["models"].items()
            for way in ("optimum", "marginalised")
        ]
        rows.append(_scores("average of all, marginalised", split["average"]["scores"]))
        growth, average = split["models"]["rbf"]["optimum"]["growth"], split["average"]["growth"]
        parts.append(f"Forecasts from {start} on, {split['training_months']} months for training:\n")
        headings = ("trend", "in the 95 % band, %", "RMSE, ppm", "mean log density")
        parts.append(table(headings, rows))
        weights = ", ".join(
            f"{name} {100 * p:.0f} %" for name, p in split["average"]["probabilities"].items()
        )
        parts.append(
            f"\nGrowth over the last five years: {growth['measured_last']:.2f} ppm a year, by the "
            "lecture's kernel "
            f"{growth['predicted_last']:.2f}, by the average {average['predicted_last']:.2f}. Weights "
            "by evidence of "
            f"the training months: {weights}.\n"
        )
    note = "5 / 10 / 20 years ahead. The lecture's kernel has the trend rbf; all have its season, "
    note += "irregularities and "
    note += "noise. Test scores of most trends had been seen when the list of them was settled; the weights "
    note += "have not "
    note += "seen them. On the earlier split the average is no better."
    first = next(iter(record.values()))
    lecture, mean = (
        each["scores"]["20"]["log_density"] for each in (first["models"]["rbf"]["optimum"], first["average"])
    )
    headline = (
        f"20 years ahead: mean log density {lecture:.2f} (lecture's kernel), {mean:.2f} (trends averaged)"
    )
    return headline, "\n".join(parts) + "\n" + note


def airline(record, table):
    rows = []
    for kernel, chosen in record["summary"].items():
        if not isinstance(chosen, dict):
            continue
        for way, row in chosen.items():
            if isinstance(row, dict):
                numbers = (f"{row[key]:.{digits}f}" for key, digits in (("log_evidence", 1), ("rmse", 3)))
                rows.append(
                    (kernel, way.replace("_", " "), row["start"], *numbers, f"{row['rmse_passengers']:.0f}")
                )
    headings = ("kernel", "chosen", "start", "log evidence", "test RMSE, log scale", "thousand passengers")
    summary = record["summary"]
    mixture, plain = (summary[name]["by_evidence"]["rmse"] for name in ("sm", "rbf"))
    note = f"Both chosen by evidence, the spectral mixture has {summary['ratio']:.2f} times the error of the "
    note += "RBF, "
    note += f"{summary['ratio_to_least_error_of_rbf']:.2f} times that of the RBF's best start in hindsight; "
    note += f"{100 * summary['share_of_starts_that_halve']:.0f} % of its starts halve the error."
    return (
        f"test RMSE {mixture:.3f} (spectral mixture), {plain:.3f} (RBF)",
        f"{table(headings, rows)}\n\n{note}",
    )


def kernel_search(record, table):
    rows = [
        (
            name,
            row["truth"].replace("|", "given"),
            row["searched"].replace("|", "given"),
            "yes" if row["found"] else "no",
            f"{row['score']:.1f}",
            f"{row['score_of_truth']:.1f}",
            row["fits"],
            f"{row['seconds']:.0f}"
            if row["processor_seconds"] is None
            else f"{row['processor_seconds']:.0f}",
        )
        for name, row in record["problems"].items()
    ]
    found = sum(row["found"] for row in record["problems"].values())
    outdone = sum(
        not row["found"] and row["score"] >= row["score_of_truth"] for row in record["problems"].values()
    )
    headings = ("problem", "truth", "found", "same structure", "score", "score of the truth", "fits")
    headings += ("seconds of a core",)
    headline = f"{found} of {len(rows)} structures found"
    if outdone:
        headline += f", and {outdone} of a higher score than the truth"
    text = table(headings, rows) + "\n\n"
    if record["shift"]:
        text += (
            "Other draws of the same problems, on which nothing was settled; run once. (A revision before "
        )
        text += "found 9 of 10 of shift 300.)"
    else:
        text += (
            "The starts and steps of the search were settled on these draws, and on those of shifts 100 and "
        )
        text += "200, of which it had found 16 of 20 before."
    if "co2" in record:
        co2 = record["co2"]
        ours, theirs = co2["searched_evidence"], co2["lecture_evidence"]
        headline += f"; CO2: log evidence (Laplace) {ours['laplace']:.1f} (searched), "
        headline += f"{theirs['laplace']:.1f} (lecture's kernel)"
        text += (
            f"\n\nCO2, {co2['rows']} months: searched `{co2['searched']}`, the lecture's `{co2['lecture']}`."
        )
        text += " Evidence of the structures, hyperparameters integrated by Laplace's approximation: "
        text += f"{ours['laplace']:.1f} and {theirs['laplace']:.1f}; BIC: {ours['bic']:.1f} and "
        text += f"{theirs['bic']:.1f}; log likelihood at the modes: {ours['log_likelihood']:.1f} and "
        text += f"{theirs['log_likelihood']:.1f}. In words: {co2['description']}"
    return headline, text


def wide_networks(record, table):
    rows, errors = [], {}
    for name, cell in record["cells"].items():
        sparsity = record["sparsity"].get(name)
        inducing = "–" if sparsity is None else sparsity["needed"]["0.3"]["inducing"]
        key = name.split(" | ")[0]
        errors[key, cell["rows"], cell["orbit"], cell["size"]] = 100 * cell["test_error"]
        numbers = (f"{cell['log_evidence']:,.0f}", f"{100 * cell['test_error']:.2f}", inducing)
        rows.append((key, f"{cell['rows']:,}", cell["orbit"], f"{cell['size']}×{cell['size']}", *numbers))
    headings = ("kernel", "images", "orbit", "pixels", "log evidence", "test error %")
    headings += ("M within 0.3 nats a row",)
    pairs = [
        f"{key} {errors[key, count, 'none', size]:.1f} to {error:.1f} %"
        for (key, count, orbit, size), error in errors.items()
        if orbit == "learned" and count == 1000
    ]
    first, command = next(iter(record["cells"].values())), record["command"]
    note = f"{first['num_test']:,} test images (pooled: half of them), one seed; the standard error of an "
    note += "error of 5 % is 0.2 %. Learned orbits are affine. Hyperparameters come from "
    note += f"{command['sizes'][0]:,} images (dense), {command['orbit_rows']:,} (dense with an orbit), "
    note += f"{command['convolution_rows']:,} (convolutional), {command['convolution_orbit_rows']:,} "
    note += f"(convolutional with an orbit) or {command['pooled_rows']:,} (pooled). "
    note += f"M counts inducing points at one noise of {command['common_noise']}. Spearman's correlation "
    note += "with the test "
    note += "error: " + ", ".join(
        f"{name} {row['spearman']:+.2f} (p = {row['p_value']:.2f}, {row['models']} models)"
        for name, row in record["correlations"].items()
    )
    return (
        f"a learned orbit lowers the error of 1,000 images: {'; '.join(pairs)}",
        f"{table(headings, rows)}\n\n{note}.",
    )


KINDS = {
    "airline.json": ("Airline passengers, the last third forecast", airline),
    "kernel_search.json": ("Structures searched for", kernel_search),
    "kernel_search_fresh.json": ("Structures searched for, other draws", kernel_search),
    "mauna_loa.json": ("CO2 at Mauna Loa, forecast 20 years ahead", mauna_loa),
    "wide_networks.json": ("Infinitely wide networks on MNIST", wide_networks),
}
