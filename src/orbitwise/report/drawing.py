"""The house style of figures, and figures as SVG inside the page, the same bytes whenever they are drawn.

Figures are one panel each and narrow, so that a page can set them side by side or one below the other.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, GREY, LIGHT = "#1f2d3a", "#66757f", "#dfe5e9"
BLUE, ORANGE, GREEN, PALE = "#0072b2", "#d55e00", "#007a5a", "#e3f1ea"
COLOURS = (BLUE, ORANGE, GREEN, "#9a5b8f", "#8a6d00", "#3b8ea5", "#7a4419", GREY)
WIDTH, HEIGHT, SMALL_WIDTH = 4.0, 2.9, 3.4
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

STYLE: dict[Any, Any] = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.w_pad": 0.12,
    "figure.dpi": 72,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "grid.color": LIGHT,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "path.simplify": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "orbitwise",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def svg_uri(draw: Callable[[Axes], None], height: float = HEIGHT, width: float = WIDTH) -> str:
    """The panel that `draw` fills, as a data URI."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # the browser has fonts of its own for names in any script
        warnings.filterwarnings("ignore", message="(?s).*[Gg]lyph")
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes: Any = figure.add_subplot()
        axes.set_axisbelow(True)
        draw(axes)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"'DejaVu Sans'(, sans-serif)?", FONTS, file.getvalue().decode())
    return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()


def shortened(text: str, length: int = 14) -> str:
    """A name that fits a tick."""
    return text if len(text) <= length else text[: length - 1] + "…"
