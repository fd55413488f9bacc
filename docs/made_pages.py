"""Pages that are written at each build: the reference by public name, that of the command, and copies.

Copies are of documents that stand outside of docs/, with links that work from here.
"""

import importlib
import inspect
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import orbitwise
from orbitwise.cli.app import app
from orbitwise.reproduce.result import SCALES, Result, all_results

FOLDERS = {
    "transforms": "How inputs can be moved: t_α(x).",
    "orbits": "Which moves a function should not care about, and how far.",
    "functionals": "What is observed of the base process g: values, averages, slopes, differences.",
    "kernels": "Base kernels that GPyTorch lacks, and a spelling of sums and products.",
    "process": "Moments of any functional of a Gaussian process, and the adapter to GPyTorch and BoTorch.",
    "likelihoods": "How targets depend on f.",
    "losses": "Convex losses of the kernel machines.",
    "inference": "Results of inference, and how hyperparameters are learned.",
    "inference.risk": "Solvers of regularised risk, the problem that kernel machines solve.",
    "inference.sampling": "Samples of f and of hyperparameters, and diagnostics of chains.",
    "selection": "Comparing and averaging models by evidence, and the search over kernels.",
    "export": "A learned orbit as an augmentation of torchvision, kornia or albumentations.",
    "storage": "Model files.",
    "report": "The report, and histories of ranges.",
    "datasets": "The data sets of the examples, by name.",
}
"""Public modules in the order of the reference, each with one sentence."""

AT_THE_TOP = {
    "Gaussian processes": [
        "InvariantGPClassifier",
        "InvariantGPRegressor",
        "SparseGPRegressor",
        "MoleculeGP",
    ],
    "Kernel machines": ["InvariantSVC", "LaplacianSVC", "VirtualSVC", "InvariantKernelRidge"],
    "Comparing and searching": ["compare", "AutoGPRegressor"],
    "Columns of tables": ["DecimalYears"],
    "Model files": ["save", "load"],
}
"""Where the reference lists the names of the package itself; others come under "Further names"."""


COPIED = {
    "contributing": "CONTRIBUTING.md",
    "notation": "NOTATION.md",
    "changelog": "CHANGELOG.md",
    "results": "results/README.md",
}
RECORDS = "results/reproduction"
"""The folder of records of `orbitwise reproduce`, with a folder for each scale."""
LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?:|#)([^)\n]+)\)")


def write_pages(docs: Path) -> None:
    """Write docs/reference and docs/made afresh."""
    pages = {"reference/index.rst": reference_index(), "reference/command.rst": command_page()}
    pages.update({f"reference/{name.replace('.', '_')}_module.rst": module_page(name) for name in FOLDERS})
    pages.update({f"made/{name}.md": copied_page(docs, original) for name, original in COPIED.items()})
    pages["made/reproduction.md"] = reproduction_page(docs)
    for folder in ("reference", "made"):
        shutil.rmtree(docs / folder, ignore_errors=True)
        (docs / folder).mkdir()
    for scale in SCALES:
        for figure in sorted((docs.parent / RECORDS / scale).glob("*.png")):
            shutil.copy(figure, docs / "made" / f"{scale}-{figure.name}")
    for name, text in pages.items():
        (docs / name).write_text(text, encoding="utf-8")


def copied_page(docs: Path, original: str) -> str:
    """A document of the repository; links to what is no page become plain text."""

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        page = target.removeprefix("docs/")
        return f"[{text}](../{page})" if target.startswith("docs/") and (docs / page).exists() else text

    return LINK.sub(link, (docs.parent / original).read_text(encoding="utf-8"))


def reproduction_page(docs: Path) -> str:
    """What the sources print beside what was measured: all results in one table, then each of them."""
    sections, rows = [], []
    for result in all_results().values():
        known = [scale for scale in reversed(SCALES) if (docs.parent / RECORDS / scale).is_dir()]
        files = {scale: docs.parent / RECORDS / scale / f"{result.name}.json" for scale in known}
        records = {
            scale: json.loads(file.read_text(encoding="utf-8"))
            for scale, file in files.items()
            if file.is_file()
        }
        finished = {scale: record for scale, record in records.items() if "claims" in record}
        best = next(iter(finished), None)
        verdicts = [] if best is None else [claim["verdict"] for claim in finished[best]["claims"]]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
        name = f"[{result.name}](#{result.name})"
        rows.append(f"| {name} | {result.source} | {best or ''} | {counts or 'no record'} |")
        sections += result_section(result, finished)
    table = ["| result | source | scale | statements |", "|---|---|---|---|", *rows]
    return "\n".join([*table, "", *sections]) + "\n"


def result_section(result: Result, records: dict[str, dict]) -> list[str]:
    """The statements of one result at each scale that has a record, and its figure at the largest."""
    lines = [
        f"({result.name})=",
        f"## {result.name}: {result.title}",
        "",
        f"{result.source}. Printed: {result.printed}",
        "",
    ]
    if not records:
        minutes = {scale: max(1, round(result.seconds(scale) / 60)) for scale in ("cpu", "full")}
        return [
            *lines,
            f"There is no record yet. `orbitwise reproduce {result.name}` takes about {minutes['cpu']} min "
            f"on two cores, with `--scale full` about {minutes['full']} min on a GPU.",
            "",
        ]
    for place, (scale, record) in enumerate(records.items()):
        cells = record["cells"].values()
        devices = ", ".join(sorted({cell["device"] for cell in cells}))
        # what else ran on a shared machine does not count
        key, clause = (
            ("processor_seconds", " of one core") if devices == "cpu" else ("seconds", f" on {devices}")
        )
        minutes = sum(cell[key] for cell in cells) / 60
        data = ", ".join(record["data"]) or "made"
        lines += [
            f"    {record['command']}",
            "",
            f"Scale {scale}: {record['seeds']} {'seed' if record['seeds'] == 1 else 'seeds'}, data: {data}, "
            f"{minutes:.1f} min{clause}.",
            "",
            "| statement | printed | measured | |",
            "|---|---|---|---|",
        ]
        for claim in record["claims"]:
            because = f": {claim['because']}" if claim["because"] else ""
            texts = (claim["says"], claim["printed"], claim["measured"], f"**{claim['verdict']}**{because}")
            lines.append("| " + " | ".join(each.replace("|", "\\|") for each in texts) + " |")
        if place == 0:
            lines += ["", f"![{result.title}]({scale}-{result.name}.png)"]
        lines.append("")
    return lines


def heading(text: str, mark: str = "=") -> list[str]:
    return [text, mark * len(text), ""]


def table_of(names: list[str]) -> list[str]:
    """An autosummary table, with a page for each name."""
    return [
        ".. autosummary::",
        "   :toctree: .",
        "   :nosignatures:",
        "",
        *(f"   {name}" for name in names),
        "",
    ]


def reference_index() -> str:
    told = {name for names in AT_THE_TOP.values() for name in names}
    modules = {name for name in orbitwise.__all__ if isinstance(getattr(orbitwise, name), ModuleType)}
    missing = modules - {"estimators", *FOLDERS}
    if missing:
        raise ValueError(f"docs/made_pages.py: name {', '.join(sorted(missing))} in FOLDERS")
    groups = dict(AT_THE_TOP)
    further = [name for name in orbitwise.__all__ if name not in told | modules]
    if further:
        groups["Further names"] = further
    lines = heading("Reference")
    lines += [
        "Everything that is public, by the name it is imported by. Estimators follow scikit-learn: methods",
        "that are inherited from it, such as `get_params`, `set_params` and `score`, do what it says they",
        "do. Names with a leading underscore, and modules that are not listed here, may change in any",
        "version.",
        "",
        ".. currentmodule:: orbitwise",
        "",
    ]
    for title, names in groups.items():
        lines += [*heading(title, "-"), *table_of(names)]
    lines += heading("Building blocks", "-")
    lines += [".. list-table::", "   :widths: 30 70", ""]
    for name, about in FOLDERS.items():
        lines += [
            f"   * - :doc:`orbitwise.{name} <{name.replace('.', '_')}_module>`",
            f"     - {about}",
        ]
    lines += ["", ".. toctree::", "   :hidden:", ""]
    lines += [f"   orbitwise.{name} <{name.replace('.', '_')}_module>" for name in FOLDERS]
    return "\n".join(lines) + "\n"


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or the public classes and functions that a module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, each in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(each) or inspect.isfunction(each))
        and each.__module__ == module.__name__
    ]


def module_page(name: str) -> str:
    """A page that lists the public names of one module."""
    module = importlib.import_module(f"orbitwise.{name}")
    kinds: dict[str, list[str]] = {"Classes": [], "Functions": [], "Constants and types": []}
    at_the_top = [getattr(orbitwise, each) for names in AT_THE_TOP.values() for each in names]
    for each in public_names(module):
        found = getattr(module, each)
        if any(found is other for other in at_the_top):
            continue
        kind = "Constants and types"
        if inspect.isclass(found):
            kind = "Classes"
        elif inspect.isfunction(found):
            kind = "Functions"
        kinds[kind].append(each)
    lines = [*heading(f"orbitwise.{name}"), FOLDERS[name], "", f".. currentmodule:: orbitwise.{name}", ""]
    for title, names in kinds.items():
        if names and title != "Constants and types":
            lines += [*heading(title, "-"), *table_of(names)]
        elif names:
            lines += heading(title, "-")
            lines += [f".. autodata:: {each}\n   :no-value:\n" for each in names]
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """The reference of the command, from its own help."""
    group = get_command(app)
    lines = heading("The orbitwise command")
    lines += [plain(group.help), "", "This page is made from the help of the command.", ""]
    lines += options_table(group)
    for name, command in group.commands.items():
        usage = " ".join(command.collect_usage_pieces(typer.Context(command)))
        lines += heading(f"orbitwise {name}", "-")
        lines += [".. code-block:: text", "", f"   orbitwise {name} {usage}", ""]
        for paragraph in plain(command.help).split("\n\n"):
            first, colon, rest = paragraph.partition(": ")
            if first == "Example" and colon:
                lines += [".. code-block:: bash", "", f"   {' '.join(rest.split())}", ""]
            else:
                lines += [*paragraph.splitlines(), ""]
        lines += options_table(command)
    return "\n".join(lines) + "\n"


def plain(text: str | None) -> str:
    """Help as reStructuredText, where only backticks are markup."""
    lines = inspect.cleandoc(text or "").replace("\\", "\\\\")
    return "".join("\\" + each if each in "*|_" else each for each in lines).replace("\b\n", "")


def options_table(command: TyperCommand | TyperGroup) -> list[str]:
    """Arguments and options of a command: name, meaning and default."""
    rows = []
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        record = each.get_help_record(typer.Context(command))
        # new versions of typer have classes of their own instead of those of click
        is_option = each.param_type_name == "option"
        names = ", ".join([*each.opts, *each.secondary_opts]) if is_option else ""
        name = f"{names} {each.metavar or ''}".strip() or each.name
        about = getattr(each, "help", None) or (record[1] if record else "")
        default = each.default
        shown = (
            f" Default: ``{default}``." if isinstance(default, str | int | float | Path) and default else ""
        )
        required = " Required." if each.required and is_option else ""
        rows.append((f"``{name}``", plain(" ".join(about.split())) + required + shown))
    if not rows:
        return []
    lines = [
        ".. list-table::",
        "   :widths: 35 65",
        "   :header-rows: 1",
        "",
        "   * - Argument",
        "     - Meaning",
    ]
    for name, about in rows:
        lines += [f"   * - {name}", f"     - {about}"]
    return [*lines, ""]
