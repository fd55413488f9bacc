"""One module for every figure and table that the documentation shows: `python -m orbitwise.experiments.NAME`."""

__all__: list[str] = []
