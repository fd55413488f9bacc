"""Does the order by evidence agree with that by test error? Rotated MNIST, 12,000 rows.

    python benchmarks/rotated_order.py

Reads the records that `orbitwise.experiments.mnist --data rotated_12000` left for each invariance, and judges
every pair as `compare` does: by the bounds at 8,000 inducing points, and by what they were at 4,000.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from orbitwise.experiments.records import command_line, write_record
from orbitwise.selection.differences import Difference

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("none", "rotation", "affine", "affine+deformation")


def rows_of(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries in the record of an invariance for half of the inducing points, and for all."""
    file = folder / f"rotated_mnist_12000_{name.replace('+', '_')}.json"
    curve = json.loads(file.read_text(encoding="utf-8"))["curve"]
    half, whole = sorted(curve, key=lambda each: each["num_inducing"])[-2:]
    if 2 * half["num_inducing"] != whole["num_inducing"]:
        raise SystemExit(f"{file.name} has no bound at half of its inducing points.")
    return half, whole


def judged(first: str, second: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Which of two is ahead by evidence, whether that is decided, and whether test errors agree."""
    (half_a, a), (half_b, b) = rows[first], rows[second]
    spread = (a["bound_error"] ** 2 + b["bound_error"] ** 2) ** 0.5
    lead = a["bound"] - b["bound"]
    difference = Difference(lead, spread, half=half_a["bound"] - half_b["bound"], kind="lower bound")
    agrees = (lead > 0) == (a["test_error"] < b["test_error"])
    return {
        "first": first,
        "second": second,
        "lead": lead,
        "lead_at_half": difference.half,
        "standard_error": spread,
        "undecided_by": difference.doubt,
        "test_errors": [a["test_error"], b["test_error"]],
        "agrees": agrees,
    }


def main() -> None:
    """Judge, print, write; fail where a decided pair contradicts the test errors."""
    parser = command_line(__doc__, ROOT / "results" / "rotated_order.json")
    parser.add_argument("--records", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    rows = {name: rows_of(name, options.records) for name in NAMES}
    pairs = [judged(first, second, rows) for first, second in itertools.combinations(NAMES, 2)]
    table = Table(title="Rotated MNIST, 12,000 rows: order by bound and by test error")
    for heading in ("pair", "lead at 4,000", "lead at 8,000", "verdict", "test errors, %", "agree"):
        table.add_column(heading)
    for pair in pairs:
        errors = " ".join(f"{100 * each:.2f}" for each in pair["test_errors"])
        verdict = f"undecided ({pair['undecided_by']})" if pair["undecided_by"] else "decided"
        table.add_row(
            f"{pair['first']}, {pair['second']}",
            f"{pair['lead_at_half']:,.0f}",
            f"{pair['lead']:,.0f} ± {pair['standard_error']:.0f}",
            verdict,
            errors,
            "yes" if pair["agrees"] else "no",
        )
    Console().print(table)
    record = {"command": "python benchmarks/rotated_order.py", "pairs": pairs}
    write_record(record, options.out)
    wrong = [pair for pair in pairs if not pair["agrees"] and pair["undecided_by"] is None]
    if wrong:
        raise SystemExit(f"Decided, but against the test errors: {wrong}")


if __name__ == "__main__":
    main()
