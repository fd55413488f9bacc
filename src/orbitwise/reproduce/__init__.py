"""Every figure and table of the sources, computed again: `orbitwise reproduce NAME`.

`result.py` says what a result consists of, `results/` has one file for each, and `runner.py` computes them.
"""

__all__: list[str] = []
