"""One file for every figure or table: `orbitwise reproduce lim-fig2` computes `RESULT` of `lim_fig2.py`."""

__all__: list[str] = []
