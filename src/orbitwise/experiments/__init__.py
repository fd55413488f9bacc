"""One module for every figure and table that is shown: `python -m orbitwise.experiments.NAME`."""

__all__: list[str] = []
