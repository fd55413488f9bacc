"""Columns of tables that are no numbers: words become codes, dates become years, and gaps are filled.

The transformer is scikit-learn's, and is kept in the model file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import Rows, is_missing, number_in
from orbitwise.estimators.dates import DecimalYears, moment_in
from orbitwise.storage.objects import estimator_in

Kind = Literal["numbers", "dates", "words"]
MOST_WORDS = 50
"""Different words that a column may hold; each becomes a column of zeros and ones."""
ROWS_PER_WORD = 2
"""A column in which words hardly repeat holds names or text."""
UNKNOWN = "missing"
"""The word for a gap among words."""


@final
class Cells(NamedTuple):
    """The cells of some columns [n, d], and which of them are empty or not finite."""

    values: NDArray[np.object_]
    gaps: NDArray[np.bool_]
    infinite: NDArray[np.bool_]


def kinds_of(rows: Rows, names: Sequence[str], path: object) -> dict[str, Kind]:
    """What each column holds; a CommandError names all columns that cannot be used."""
    kinds: dict[str, Kind] = {}
    problems: dict[str, str] = {}
    for name in names:
        cells = rows.columns[name]
        known = [place for place, cell in enumerate(cells) if not is_missing(cell)]
        words = [place for place in known if number_in(cells[place]) is None]
        different = {str(cells[place]) for place in known}
        if not known:
            problems[name] = "is empty"
        elif not words:
            kinds[name] = "numbers"
        elif all(_is_date(cells[place]) for place in known):
            kinds[name] = "dates"
        elif 2 * len(words) < len(known):
            first = words[0]
            problems[name] = f"holds {str(cells[first])!r} in {rows.labels[first]} among numbers"
        elif len(different) > MOST_WORDS or len(known) < ROWS_PER_WORD * len(different):
            problems[name] = f"holds {len(different)} different words in {len(known)} rows"
        else:
            kinds[name] = "words"
    if problems:
        told = "; ".join(f"column {name!r} {problem}" for name, problem in problems.items())
        ignored = " ".join(f"--ignore {name}" for name in problems)
        raise CommandError(
            f"{path}: {told}; inputs are numbers, dates, or words that repeat: correct these columns, or "
            f"leave them out with {ignored}"
        )
    return kinds


def _is_date(cell: object) -> bool:
    try:
        return not np.isnat(moment_in(cell))
    except ValueError:
        return False


def cells_of(rows: Rows, names: Sequence[str], texts: Iterable[str]) -> Cells:
    """The cells of these columns; those in `texts` are words and dates, all others numbers."""
    columns: list[NDArray[np.object_]] = []
    for name in names:
        if name in texts:
            cells = [_as_word(cell) for cell in rows.columns[name]]
        else:
            cells = rows.numbers(name).tolist()
        columns.append(np.array(cells, dtype=object))
    values = np.stack(columns, axis=1)
    gaps = np.array([[cell is None or cell != cell for cell in row] for row in values], dtype=bool)
    infinite = np.array([[cell in (np.inf, -np.inf) for cell in row] for row in values], dtype=bool)
    values[gaps] = np.nan
    return Cells(values, gaps.reshape(values.shape), infinite.reshape(values.shape))


def _as_word(cell: object) -> object:
    """Words as text, dates as they are, None for a gap."""
    if is_missing(cell):
        return None
    return str(cell) if isinstance(cell, str | bool | int | float) else cell


def encoder_for(kinds: dict[str, Kind], values: NDArray[np.object_], fills: bool) -> ColumnTransformer | None:
    """The transformer of these columns, fitted; None where all are numbers and no gaps are to be filled."""
    if not fills and set(kinds.values()) == {"numbers"}:
        return None
    places: dict[Kind, list[int]] = {}
    for place, kind in enumerate(kinds.values()):
        places.setdefault(kind, []).append(place)
    median = SimpleImputer(strategy="median", add_indicator=True)
    codes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    fill = SimpleImputer(strategy="constant", fill_value=UNKNOWN)
    steps: dict[Kind, object] = {
        "numbers": median if fills else "passthrough",
        "dates": make_pipeline(DecimalYears(), median) if fills else DecimalYears(),
        "words": make_pipeline(fill, codes) if fills else codes,
    }
    blocks = [(kind, steps[kind], own) for kind, own in places.items()]
    built = ColumnTransformer(blocks, verbose_feature_names_out=False, sparse_threshold=0).fit(values)
    names = np.array(list(kinds), dtype=object)
    vars(built)["feature_names_in_"] = names
    for kind, step, _ in built.transformers_:
        first = step.steps[0][1] if isinstance(step, Pipeline) else step
        if isinstance(first, SimpleImputer | OneHotEncoder | DecimalYears):
            # so that data frames are taken as well
            vars(first)["feature_names_in_"] = names[places[kind]]
    return built


Encoder = ColumnTransformer | Pipeline
"""What stands before the estimator of a pipeline."""


def columns_of(encoder: Encoder) -> tuple[str, ...] | None:
    """The names of the columns that a transformer was fitted to, if they had any."""
    names = getattr(encoder, "feature_names_in_", None)
    return None if names is None else tuple(map(str, names))


def texts_of(encoder: Encoder) -> set[str]:
    """The columns in which a transformer expects words or dates."""
    names: tuple[str, ...] = columns_of(encoder) or ()
    found = set[str]()
    first = encoder.steps[0][1] if isinstance(encoder, Pipeline) else encoder
    if not isinstance(first, ColumnTransformer):
        return set(names) if _takes_text(encoder) else found
    for name, step, _ in first.transformers_:
        if _takes_text(step):
            found.update(str(names[place]) for place in first._transformer_to_input_indices[name])
    return found


def fills_gaps(encoder: object) -> bool:
    """Whether a transformer takes cells that are empty."""
    if isinstance(encoder, ColumnTransformer):
        return any(fills_gaps(step) for _, step, _ in encoder.transformers_)
    if isinstance(encoder, Pipeline):
        return any(fills_gaps(step) for _, step in encoder.steps)
    return isinstance(encoder, SimpleImputer)


def _takes_text(step: object) -> bool:
    if isinstance(step, Pipeline):
        return any(_takes_text(part) for _, part in step.steps)
    if isinstance(step, OneHotEncoder | OrdinalEncoder):
        return any(isinstance(each, str) for known in step.categories_ for each in known)
    return isinstance(step, DecimalYears)


def encoded(encoder: Encoder, values: NDArray[np.object_]) -> NDArray[np.float64]:
    """The numbers that a transformer makes of cells; words that it never saw are told, once per column."""
    for name, words in _new_words(encoder, values).items():
        warnings.warn(
            f"column {name!r} holds {words[0]!r}{' and other words' if len(words) > 1 else ''} not among the "
            "rows that the model learned from: predictions for such rows ignore that column, and their error "
            "bars do not show it",
            stacklevel=2,
        )
    with warnings.catch_warnings():
        # columns were matched by name already
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        return np.asarray(encoder.transform(values), dtype=np.float64)


def _new_words(encoder: Encoder, values: NDArray[np.object_]) -> dict[str, list[str]]:
    """The words of each column for which a transformer has no code."""
    first = encoder.steps[0][1] if isinstance(encoder, Pipeline) else encoder
    names = columns_of(encoder)
    found: dict[str, list[str]] = {}
    if names is None or not isinstance(first, ColumnTransformer):
        return found
    for name, step, _ in first.transformers_:
        codes = step.steps[-1][1] if isinstance(step, Pipeline) else step
        if isinstance(codes, OneHotEncoder):
            places = first._transformer_to_input_indices[name]
            for place, known in zip(places, codes.categories_, strict=True):
                words = {str(cell) for cell in values[:, place] if not is_missing(cell)}
                if new := sorted(words - set(map(str, known))):
                    found[names[place]] = new
    return found


def names_out(encoder: Encoder) -> tuple[str, ...]:
    """The names of the columns of numbers."""
    found = encoder.get_feature_names_out()
    return () if found is None else tuple(map(str, found))


def estimator_of(model: object) -> Any:
    """The estimator of a model that may be a pipeline; it knows the names of its columns of numbers."""
    estimator = estimator_in(model)
    if isinstance(model, Pipeline) and columns_of(model[:-1]) is not None:
        vars(estimator)["feature_names_in_"] = np.array(names_out(model[:-1]), dtype=object)
    return estimator
