"""How Sphinx builds the documentation.

`make docs` shows the scripts of the gallery without running them; `make gallery` runs them, too.
"""

import inspect
import os
import re
import sys
import warnings
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from made_pages import write_pages  # noqa: E402

project = "Orbitwise"
author = "the Orbitwise contributors"
release = version = installed_version("orbitwise")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["templates", "made/reproduction.md", "made/results.md"]
templates_path = ["templates"]
suppress_warnings = ["config.cache"]  # the gallery is given functions

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Docstrings are plain text with code in single backticks.
default_role = "code"
smartquotes = False  # they would change --option and "name"
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "inherited-members": True}
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 90
numpydoc_show_class_members = False
numpydoc_attributes_as_param_list = True

# Pages and search work without a network; formulas are drawn by MathJax, which the reader's browser fetches.
html_theme = "pydata_sphinx_theme"
html_title = f"Orbitwise {release}"
html_static_path = ["static"]
html_css_files = ["orbitwise.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "Orbitwise"},
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "quickstart": [], "faq": [], "glossary": [], "choosing": [], "data": []}
copyright = author
copybutton_exclude = ".linenos, .gp, .go"

# Each script writes its pictures and numbers there.
GALLERY_OUT = HERE.parent / "build" / "gallery"
NEEDS_DATA = ["airline", "mauna_loa", "molecule_forces"]
LAST = [
    "symmetric_optimisation",
    "botorch_invariant_kernel",
]  # importing BoTorch changes settings of GPyTorch


def arguments_of_script(gallery_conf, script_vars):
    """Command line of a script of the gallery."""
    name = Path(script_vars["src_file"]).stem
    record = ["--record", str(HERE.parent / "results" / "mauna_loa.json")] if name == "mauna_loa" else []
    return ["--out", str(GALLERY_OUT / name), *record]


def place_in_gallery(name):
    """Scripts in the order of docs/gallery_order.txt; those that change settings of others come last."""
    order = (HERE / "gallery_order.txt").read_text(encoding="utf-8").split()
    stem = Path(name).stem
    return (stem in LAST, order.index(stem) if stem in order else len(order), stem)


left_out = [] if os.environ.get("ORBITWISE_DATA") else NEEDS_DATA
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/(?!({'|'.join(left_out) or '$'})\.py)\w+\.py$",
    "within_subsection_order": place_in_gallery,
    "reset_argv": arguments_of_script,
    "backreferences_dir": "reference/examples",
    "doc_module": ("orbitwise",),
    "plot_gallery": "False",  # `make gallery` says otherwise
    "image_srcset": ["2x"],
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 0,
}
warnings.filterwarnings("ignore", message=".*non-interactive.*")


MARKUP = re.compile(r"(`+[^`]*`+)|([|*_])")


def escape_plain_text(app, what, name, obj, options, lines):
    """Keep |x|, x* and kernel_ from being read as markup.

    What stands in backticks, examples, and names of parameters are left alone.
    """
    in_example = False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example:
            named = re.match(r"\*{0,2}\w+( : |$)", line)
            start = named.end() if named else 0
            lines[number] = line[:start] + MARKUP.sub(lambda hit: hit[1] or "\\" + hit[2], line[start:])


def skip_foreign(app, what, name, obj, skip, options):
    """Leave out what a class inherits from other libraries, and what the list of attributes tells already."""
    if name == "check_parts" or (isinstance(obj, property) and name.endswith("_")):
        return True
    while isinstance(obj, property):
        obj = obj.fget
    module = getattr(obj, "__module__", None)
    return True if isinstance(module, str) and not module.startswith("orbitwise") else None


def plain_signature(app, what, name, obj, options, signature, returned):
    """Types are left to the table of parameters where there is one."""
    if what == "class" and "\nParameters\n---" in (inspect.getdoc(obj) or ""):
        given = inspect.signature(obj)
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in given.parameters.values()]
        signature = str(given.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return signature, returned


def setup(app):
    app.connect("config-inited", lambda app, config: write_pages(HERE))
    app.connect("autodoc-process-docstring", escape_plain_text, priority=400)
    app.connect("autodoc-process-signature", plain_signature)
    app.connect("autodoc-skip-member", skip_foreign)
