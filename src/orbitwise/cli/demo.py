"""The demonstration: which moves of handwritten digits does the evidence of 300 of them support?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from orbitwise import datasets
from orbitwise.cli.data import Data
from orbitwise.cli.invariances import IMAGE_CANDIDATES
from orbitwise.cli.learning import Plan

NUM_TRAINING = 300


def demo_data(seed: int = 0) -> tuple[Data, Data]:
    """Training and test images of digits, 8 x 8 pixels between 0 and 1, chosen at random."""
    digits = datasets.load("digits")
    order = np.random.default_rng(seed).permutation(len(digits.x))
    parts = []
    for rows in (order[:NUM_TRAINING], order[NUM_TRAINING:]):
        x = digits.x[rows].reshape(len(rows), -1).astype(np.float64) / 16
        labels = [f"row {row}" for row in rows]
        parts.append(Data(x, digits.y[rows], labels, None, (8, 8), True, "digit"))
    return parts[0], parts[1]


def demo_plan(seed: int = 0, device: str = "cpu", options: Mapping[str, Any] | None = None) -> Plan:
    """The usual candidates for images, with the options of their estimators, usually none."""
    return Plan("classification", IMAGE_CANDIDATES, seed, device, {} if options is None else options)
