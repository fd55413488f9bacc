"""How Sphinx builds the documentation."""

import re
from importlib.metadata import version as installed_version

project = "Orbitwise"
author = "the Orbitwise contributors"
release = version = installed_version("orbitwise")

extensions = [
    "myst_parser",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2

# One page for every module, written into docs/reference/ at each build.
apidoc_modules = [
    {"path": "../src/orbitwise", "destination": "reference", "separate_modules": True, "module_first": True}
]
exclude_patterns = ["reference/modules.rst"]
# Each class is described once, where it is defined, not again where its package exports it.
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
# Docstrings are plain text with code in single backticks.
default_role = "code"

html_theme = "furo"
html_title = f"Orbitwise {release}"


def escape_plain_text(app, what, name, obj, options, lines):
    """Keep |x|, x* and kernel_ from being read as markup; what stands in backticks is left alone."""
    lines[:] = [re.sub(r"(`+[^`]*`+)|([|*_])", lambda hit: hit[1] or "\\" + hit[2], line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", escape_plain_text)
