"""Longer measurements, whose records are in `results/`: `python -m orbitwise.experiments.NAME`.

Figures and tables of the sources are in `orbitwise.reproduce`.
"""

__all__: list[str] = []
