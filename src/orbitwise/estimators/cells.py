"""What the cells of a table hold that are no numbers: words and gaps, by column, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

MOST_NAMED = 8
"""Columns that a message names."""


def explained(columns: Iterable[tuple[object, object]], error: ValueError) -> ValueError:
    """The error with the names of all columns that hold words or gaps, where there are any."""
    words, gaps = list[str](), list[str]()
    for name, column in columns:
        cells = np.asarray(column, dtype=object).ravel()
        if any(isinstance(cell, str) for cell in cells):
            words.append(repr(name))
        elif any(cell is None or cell != cell for cell in cells):
            gaps.append(repr(name))
    told = [f"words in {_some(words)}"] if words else []
    told += [f"missing values in {_some(gaps)}"] if gaps else []
    if not told:
        return error
    return ValueError(
        f"{str(error).splitlines()[0].rstrip('.')}. X has {' and '.join(told)}: put a ColumnTransformer with "
        "OneHotEncoder or SimpleImputer before the estimator in a pipeline, which orbitwise.save keeps whole."
    )


def _some(names: Sequence[str]) -> str:
    """A few names of columns, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names[:MOST_NAMED])}{more}"
