"""The rules of the house, checked on the source text: import order, mirrored tests, names, sizes, classes.

Every checker takes a folder and returns what it found wrong, one line each. Each is also run on a small
made-up package that breaks its rule, so that a checker that sees nothing cannot pass.
"""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orbitwise.estimators.invariances import NAMES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "orbitwise"

# Imports go only to the left. `datasets` imports nothing of ours because nothing stands to its left.
LAYERS = [
    "declarations",
    "datasets",
    "transforms",
    "orbits",
    "functionals",
    "kernels",
    "process",
    "likelihoods",
    "losses",
    "inference",
    "estimators",
    "selection",
    "export",
    "storage",
    "report",
    "experiments",
    "reproduce",
    "cli",
]
MOST_LINES = 700
MOST_OPEN_TYPES = 40
FEWEST_NAMES = 4
"""Of invariances that make a list of them a second vocabulary."""
HOLDERS = {"LatentModel", "Stream"}
"""Classes that may hold process, functional and likelihood."""
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}
GLOBAL_SEEDS = {
    "numpy.random.seed",
    "numpy.random.set_state",
    "random.seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.random.seed",
    "torch.seed",
    "torch.set_rng_state",
}
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/<}])/(?:etc|home|mnt|opt|root|scratch|srv|tmp|usr|var|work|Users|Volumes)(?=[/\"'`])"
    r"|[\"'][A-Za-z]:(?:\\|/)"
)


def modules(package: Path) -> Iterator[tuple[str, Path, ast.Module]]:
    """Yield (dotted name, file, syntax tree) of every module; a package goes by the name of its folder."""
    for file in sorted(package.rglob("*.py")):
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, file, ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports(name: str, file: Path, tree: ast.Module) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line, module, imported name or "", local name) of every import, relative ones made absolute."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a; `import a.b as c` binds a.b.
                yield node.lineno, alias.name, "", alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, module, alias.name, alias.asname or alias.name


def wrong_imports(package: Path) -> list[str]:
    """A module imports only layers to the left; the top `__init__` and `__main__` import what they like."""
    found = []
    for name, file, tree in modules(package):
        if name in (package.name, f"{package.name}.__main__"):
            continue
        own = name.split(".")[1]
        if own not in LAYERS:
            found.append(f"{name}: the layer {own} has no place in LAYERS")
            continue
        for line, module, imported, _ in imports(name, file, tree):
            path = [*module.split("."), imported]
            if path[0] != package.name or path[1:] == ["__version__"]:
                continue
            if path[1] not in LAYERS:
                found.append(
                    f"{name}:{line}: imports {'.'.join(path).rstrip('.')}: name the layer it comes from"
                )
            elif LAYERS.index(path[1]) > LAYERS.index(own):
                found.append(f"{name}:{line}: {own} imports {path[1]}, which is to its right")
    return found


def missing_tests(package: Path) -> list[str]:
    """Some test imports a public function or class of each module; tests follow concepts, not files."""
    tested = set()
    for file in (package.parents[1] / "tests").rglob("*.py"):
        for _, module, imported, _ in imports(file.stem, file, ast.parse(file.read_text(encoding="utf-8"))):
            if module.split(".")[0] == package.name:
                tested |= {module, f"{module}.{imported}", imported}
    found = []
    for name, file, tree in modules(package):
        kinds = ast.FunctionDef | ast.ClassDef
        public = {each.name for each in tree.body if isinstance(each, kinds) and each.name[0] != "_"}
        is_module = file.name not in ("__init__.py", "__main__.py")
        if is_module and public and name not in tested and not public & tested:
            found.append(f"{name}: no test imports what it defines")
    return found


def wrong_exports(package: Path) -> list[str]:
    """Every package says `__all__`; wherever it is said it is sorted and each name is there."""
    found = []
    for name, file, tree in modules(package):
        assigned = [target for node in tree.body for target in _targets(node)]
        if "__all__" not in assigned:
            if file.name == "__init__.py":
                found.append(f"{name}: has no __all__")
            continue
        module = importlib.import_module(name)
        if list(module.__all__) != sorted(set(module.__all__)):
            found.append(f"{name}: __all__ is not sorted, or repeats a name")
        found += [
            f"{name}: __all__ names {each}, which is not there"
            for each in module.__all__
            if not hasattr(module, each)
        ]
    return found


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def long_files(package: Path) -> list[str]:
    """No file has more than MOST_LINES lines."""
    lengths = {name: len(file.read_text(encoding="utf-8").splitlines()) for name, file, _ in modules(package)}
    return [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > MOST_LINES]


def vague_names(package: Path) -> list[str]:
    """No module or folder is called utils or the like."""
    names = [name for name, _, _ in modules(package)]
    return [
        f"{name}: say what it is for"
        for name in names
        if VAGUE & {word.strip("_") for word in name.split(".")}
    ]


def absolute_paths(package: Path) -> list[str]:
    """No place of one machine is written in the source."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, file, _ in modules(package)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if ABSOLUTE_PATH.search(line)
    ]


def global_seeds(package: Path) -> list[str]:
    """No global random state is set; generators are arguments."""
    found = []
    for name, file, tree in modules(package):
        names = _names(name, file, tree)
        calls = [
            (node.lineno, _dotted(node.func, names)) for node in ast.walk(tree) if isinstance(node, ast.Call)
        ]
        found += [f"{name}:{line}: calls {called}" for line, called in calls if called in GLOBAL_SEEDS]
    return found


def _names(name: str, file: Path, tree: ast.Module) -> dict[str, str]:
    """What each imported local name stands for, dotted in full."""
    names = {}
    for _, module, imported, local in imports(name, file, tree):
        if imported:
            names[local] = f"{module}.{imported}"
        else:
            names[local] = local if module.partition(".")[0] == local else module
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name of an expression such as `np.random.seed`, or "" where it has none."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value, names)
    if isinstance(node, ast.Attribute):
        return f"{owner}.{node.attr}" if (owner := _dotted(node.value, names)) else ""
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def wrong_classes(package: Path) -> list[str]:
    """A class is abstract or final; the abstract ones of a folder are in the file named for its singular.

    A protocol, which only says what a caller needs, stands beside the caller.
    """
    found, bases, abstract, protocols, reexported = [], {}, {}, set(), {}
    for name, file, tree in modules(package):
        names = _names(name, file, tree)
        reexported |= {f"{name}.{local}": whole for local, whole in names.items()}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names[node.name] = f"{name}.{node.name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[names[node.name]] = [_dotted(base, names) for base in node.bases]
                if _is_abstract(node, names):
                    abstract[names[node.name]] = file
                if "typing.Protocol" in bases[names[node.name]]:
                    protocols.add(names[node.name])

    def defined(name: str) -> str:
        seen = set()
        while name not in bases and name in reexported and name not in seen:
            seen.add(name)
            name = reexported[name]
        return name

    for child, parents in bases.items():
        final = [parent for parent in map(defined, parents) if parent in bases and parent not in abstract]
        found += [f"{child}: inherits from {parent}, which is not abstract" for parent in final]

    for folder in {file.parent for file in abstract.values()} - {package}:
        ours = sorted(set(abstract) - protocols)
        ours = [name for name in ours if abstract[name].parent == folder]
        homes = [
            home
            for word in (folder.name, folder.name.removesuffix("s"))
            if (home := folder / f"{word}.py").is_file()
        ]
        if len({abstract[name] for name in ours}) > 1:
            found.append(f"{folder.name}: has abstract classes in several files: {', '.join(ours)}")
        found += [
            f"{name}: belongs in {homes[0].name}" for name in ours if homes and abstract[name] not in homes
        ]
    return found


def _is_abstract(node: ast.ClassDef, names: dict[str, str]) -> bool:
    marks = [*node.bases, *(keyword.value for keyword in node.keywords if keyword.arg == "metaclass")]
    decorators = [each for part in node.body for each in getattr(part, "decorator_list", [])]
    return bool(
        {_dotted(mark, names) for mark in marks} & {"abc.ABC", "abc.ABCMeta", "typing.Protocol"}
        or {_dotted(each, names) for each in decorators} & {"abc.abstractmethod"}
    )


def second_inducing_factors(package: Path) -> list[str]:
    """Only `inducing_factor`, in one module, factorises the covariance K_uu of inducing variables."""
    found, homes = [], []
    for name, _, tree in modules(package):
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            calls = {
                getattr(each.func, "attr", getattr(each.func, "id", ""))
                for each in ast.walk(node)
                if isinstance(each, ast.Call)
            }
            factorises = bool(calls & {"cholesky", "cholesky_ex"})
            if factorises and calls & {"inducing_rows", "inducing_covariance"}:
                homes.append(f"{name}.{node.name}")
    if len(homes) > 1 or any(not home.endswith(".inducing_factor") for home in homes):
        found.append(f"K_uu is factorised in {', '.join(homes)}: call inducing_factor")
    return found


def second_collapsed_bounds(package: Path) -> list[str]:
    """One function is the collapsed bound: no other function or method has that name."""
    homes = [
        f"{name}.{node.name}"
        for name, _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("collapsed_bound", "lower_bound")
    ]
    return [f"there are several collapsed bounds: {', '.join(homes)}"] if len(homes) > 1 else []


def second_vocabularies(package: Path) -> list[str]:
    """Only `estimators/invariances.py` lists names of invariances; experiments may pick their own few."""
    found = []
    for name, _, tree in modules(package):
        is_choice = ".experiments" in name or ".reproduce." in name
        if name.endswith(".estimators.invariances") or is_choice:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                listed = node.keys
            elif isinstance(node, ast.Tuple | ast.List | ast.Set):
                listed = node.elts
            else:
                continue
            names = [each.value for each in listed if isinstance(each, ast.Constant) and each.value in NAMES]
            if len(names) >= FEWEST_NAMES:
                found.append(f"{name}:{node.lineno}: lists {', '.join(map(str, names))}: ask NAMES")
    return found


def second_hessians(package: Path) -> list[str]:
    """Hessians by differences of gradients come from one function, `finite_difference_hessian`."""
    homes = [
        f"{name}.{node.name}"
        for name, _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "difference" in node.name and "hessian" in node.name
    ]
    return [f"there are several Hessians by differences: {', '.join(homes)}"] if len(homes) > 1 else []


def second_drivers(package: Path) -> list[str]:
    """One place calls scipy's L-BFGS-B, because it keeps the best point and backs off from failures."""
    homes = [
        f"{name}:{node.lineno}"
        for name, _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == "L-BFGS-B"
    ]
    homes += [
        f"{name}:{node.lineno}"
        for name, _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and "fmin_l_bfgs_b" in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
    ]
    return [f"L-BFGS-B is driven in {', '.join(homes)}"] if len(homes) > 1 else []


def second_proposals(package: Path) -> list[str]:
    """Importance sampling and Metropolis-Hastings share one proposal, a Student-t."""
    homes = [
        f"{name}.{node.name}"
        for name, _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Proposal")
    ]
    return [f"there are several proposals: {', '.join(homes)}"] if len(homes) > 1 else []


def second_laplace_evidences(package: Path) -> list[str]:
    """Laplace's method is in two functions: over hyperparameters, and over the values of f of labels."""
    homes = [
        f"{name}.{node.name}"
        for name, _, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and {"laplace", "evidence"} <= set(node.name.split("_"))
    ]
    others = sorted(
        {home.rpartition(".")[2] for home in homes} - {"laplace_evidence", "laplace_log_evidence"}
    )
    found = [f"{name} is another Laplace evidence" for name in others]
    if len(homes) - len(others) > 2:
        found.append(f"there are several Laplace evidences: {', '.join(homes)}")
    return found


def second_latent_models(package: Path) -> list[str]:
    """`LatentModel` holds process, functional and likelihood; so does a stream, because it is stored."""
    found = []
    for name, _, tree in modules(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in HOLDERS:
                held = {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                        held |= {argument.arg for argument in [*each.args.args, *each.args.kwonlyargs]}
                if {"process", "functional", "likelihood"} <= held:
                    found.append(f"{name}.{node.name} holds the parts of a LatentModel: take one")
    return found


def second_jitters(package: Path) -> list[str]:
    """From `inference` on, covariances are factorised by `cholesky`, which adds jitter only if needed.

    No other module of these layers calls torch's own factorisation.
    """
    found = []
    for name, file, tree in modules(package):
        layer = name.split(".")[1] if "." in name else ""
        if layer not in LAYERS[LAYERS.index("inference") :] or name.endswith(".linear_algebra"):
            continue
        names = _names(name, file, tree)
        for node in ast.walk(tree):
            called = _dotted(node.func, names) if isinstance(node, ast.Call) else ""
            if called in ("torch.linalg.cholesky", "torch.linalg.cholesky_ex", "torch.cholesky"):
                found.append(f"{name}:{node.lineno}: calls {called}: call cholesky of linear_algebra")
    return found


def second_hyperpriors(package: Path) -> list[str]:
    """Hyperpriors are evaluated in two modules only: each in `hyperpriors`, all as one in `hyperparameters`.

    Elsewhere no function is called log_prior or defines a hyperprior, and no registered priors are read.
    Samplers may take a log prior as an argument.
    """
    found = []
    for name, _, tree in modules(package):
        if name.rpartition(".")[2] in ("hyperpriors", "hyperparameters") and ".inference." in name:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and re.search(
                "^log_prior$|^(?!log_).*hyperprior", node.name
            ):
                found.append(f"{name}:{node.lineno}: {node.name} is a second system of hyperpriors")
            if isinstance(node, ast.Attribute) and node.attr in ("named_priors", "log_prob"):
                found.append(f"{name}:{node.lineno}: {node.attr} evaluates priors: call log_prior")
    return found


def private_access(package: Path) -> list[str]:
    """No folder reads or imports a name with one leading underscore that only other folders define.

    Names are told apart by their spelling alone: one that several folders define belongs to each of them.
    `self`, `cls` and `super()` may use what they inherit, and names of other libraries are not looked at.
    """
    homes: dict[str, set[str]] = {}
    uses: list[tuple[str, str, int, str]] = []
    for name, file, tree in modules(package):
        own = file.relative_to(package).with_suffix("").parts[0]
        for each in _private_definitions(tree):
            homes.setdefault(each, set()).add(own)
        for line, module, imported, _ in imports(name, file, tree):
            path = [*module.split("."), imported]
            if path[0] == package.name and path[1:2] != [own]:
                uses += [(own, name, line, each) for each in path[1:] if _is_private(each)]
        uses += [(own, name, line, each) for line, each in _private_reads(tree)]
        if _is_private(file.stem):
            homes.setdefault(file.stem, set()).add(own)
    return [
        f"{name}:{line}: {own} uses {each} of {' and '.join(sorted(homes[each]))}"
        for own, name, line, each in uses
        if own not in homes.get(each, {own})
    ]


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def _private_definitions(tree: ast.Module) -> Iterator[str]:
    """Names of modules and classes, those of methods among them, and what methods assign on self or cls."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Module | ast.ClassDef):
            names = [name for each in node.body for name in (*_targets(each), getattr(each, "name", ""))]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr] if _is_inherited(node.value) else []
        yield from filter(_is_private, names)


def _private_reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of `x._name`, and of `getattr(x, "_name")` and the like, for all x but self and cls.

    The like are `hasattr`, `setattr` and `delattr`, `vars(x)["_name"]`, and `attrgetter("_name")`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = node.value, node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
        ):
            owner, name = node.args[0], node.args[1].value
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.value, ast.Call)
            and getattr(node.value.func, "id", "") == "vars"
            and node.value.args
        ):
            owner, name = node.value.args[0], node.slice.value
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) == "attrgetter"
            and isinstance(node.args[0], ast.Constant)
        ):
            yield from (
                (node.lineno, each) for each in str(node.args[0].value).split(".") if _is_private(each)
            )
            continue
        else:
            continue
        if isinstance(name, str) and _is_private(name) and not _is_inherited(owner):
            yield node.lineno, name


def _is_inherited(owner: ast.expr) -> bool:
    """Whether an expression is self, cls or super(), whose private names may come from a base class."""
    is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return is_super or (isinstance(owner, ast.Name) and owner.id in ("self", "cls"))


def open_types(package: Path) -> list[str]:
    """At most MOST_OPEN_TYPES arguments and attributes have the type Any."""
    open_ones = [
        f"{name}:{number}"
        for name, file, _ in modules(package)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for _ in re.finditer(r"\w+: Any", line)
    ]
    if len(open_ones) <= MOST_OPEN_TYPES:
        return []
    return [f"{len(open_ones)} of type Any, at {', '.join(open_ones)}: name the type"]


Checker = Callable[[Path], list[str]]
CHECKERS: list[Checker] = [
    wrong_imports,
    missing_tests,
    wrong_exports,
    long_files,
    vague_names,
    absolute_paths,
    global_seeds,
    wrong_classes,
    second_inducing_factors,
    second_collapsed_bounds,
    second_vocabularies,
    second_drivers,
    second_hessians,
    second_proposals,
    second_hyperpriors,
    second_jitters,
    second_laplace_evidences,
    second_latent_models,
    private_access,
    open_types,
]


@pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)
def test_the_source_keeps_the_rules(check: Checker):
    found = check(PACKAGE)
    assert not found, f"{check.__doc__}\n" + "\n".join(found)


ABSTRACT = "from abc import ABC\nclass Orbit(ABC): ...\n"

FACTOR = "def inducing_factor(process, z):\n    return cholesky(process.covariance(inducing_rows(z)))\n"

PARTS = "class Name:\n  def __init__(self, process, functional, *, likelihood): ...\n"

PRIVATE = """\
class _A:
    def __init__(self):
        self._x = 0
    def _f(self): ...
def _g(): ...
"""

# (checker, files of a made-up package called house, how often they break the rule)
MADE_UP = [
    (wrong_imports, {"orbits/a.py": "from house.transforms import b\nfrom . import c\nimport torch"}, 0),
    (wrong_imports, {"__init__.py": "from house.cli import main\n"}, 0),
    (wrong_imports, {"cli.py": "from house import __version__\nfrom house import datasets, storage"}, 0),
    (wrong_imports, {"orbits/a.py": "from house.process import b"}, 1),
    (wrong_imports, {"orbits/a.py": "import house.cli\nimport house.process.exact as b"}, 2),
    (wrong_imports, {"orbits/a.py": "from ..process.b import c\nfrom .. import cli"}, 2),
    (wrong_imports, {"orbits/__init__.py": "from ..process import c\nfrom .a import b"}, 1),
    (wrong_imports, {"orbits/a.py": "def f():\n    from house import cli"}, 1),
    (wrong_imports, {"orbits/a.py": "from house import Something\nimport house"}, 2),
    (wrong_imports, {"datasets.py": "from house.transforms import b"}, 1),
    (wrong_imports, {"somewhere/a.py": ""}, 1),
    (missing_tests, {"orbits/a.py": "", "../../tests/test_moves.py": "from house.orbits.a import b"}, 0),
    (missing_tests, {"a/b.py": "class C: ...", "../../tests/test_moves.py": "from house.a import C"}, 0),
    (
        missing_tests,
        {"a.py": "def b(): ...", "c.py": "class D: ...", "../../tests/test_a.py": "import house"},
        2,
    ),
    (wrong_exports, {"__init__.py": "__all__ = ['A', 'b']\nA = b = 0\n", "a.py": ""}, 0),
    (wrong_exports, {"__init__.py": "__all__ = ['b', 'A']\nA = b = 0\n"}, 1),
    (wrong_exports, {"__init__.py": "__all__: list[str] = ['A', 'A']\nA = 0\n"}, 1),
    (wrong_exports, {"__init__.py": "__all__ = []", "a.py": "__all__ = ['A', 'b']\nb = 0\n"}, 1),
    (wrong_exports, {"__init__.py": "A = 0"}, 1),
    (long_files, {"a.py": "\n" * MOST_LINES}, 0),
    (long_files, {"a.py": "\n" * (MOST_LINES + 1)}, 1),
    (vague_names, {"orbits/commonly.py": ""}, 0),
    (vague_names, {"orbits/utils.py": "", "_helpers.py": "", "misc/a.py": ""}, 3),
    (absolute_paths, {"a.py": "b = c /tmp\nd = f'{b}/tmp/e'\nu = 'https://example.org/tmp/a'"}, 0),
    (absolute_paths, {"a.py": "b = '/tmp/c'\nd = '/home'\n# see /mnt/e\ng = 'C:\\\\h'\n"}, 4),
    (global_seeds, {"a.py": "import torch\ntorch.Generator().manual_seed(0)\ntorch.manual_seed\n"}, 0),
    (global_seeds, {"a.py": "import torch, numpy as np\ntorch.manual_seed(0)\nnp.random.seed(0)\n"}, 2),
    (
        global_seeds,
        {"a.py": "from torch import manual_seed as s\nfrom numpy import random\ns(0)\nrandom.seed(0)\n"},
        2,
    ),
    (global_seeds, {"a.py": "import torch.cuda\ndef f():\n    torch.cuda.manual_seed_all(0)\n"}, 1),
    (
        wrong_classes,
        {"orbits/orbit.py": ABSTRACT, "orbits/a.py": "from .orbit import Orbit\nclass A(Orbit): ..."},
        0,
    ),
    (wrong_classes, {"a.py": "import enum\nclass A(enum.Enum): ...\nclass B(ValueError): ..."}, 0),
    (wrong_classes, {"a.py": "class A: ...\nclass B(A): ..."}, 1),
    (wrong_classes, {"a.py": "class A: ...", "b.py": "from house import a\nclass B(a.A): ..."}, 1),
    (
        wrong_classes,
        {
            "a/b.py": "class A: ...",
            "a/__init__.py": "from .b import A as B",
            "c.py": "from .a import B\nclass C(B): ...",
        },
        1,
    ),
    (
        wrong_classes,
        {"a.py": "import abc\nclass A:\n  @abc.abstractmethod\n  def f(self): ...\nclass B(A): ..."},
        0,
    ),
    (wrong_classes, {"orbits/orbit.py": "", "orbits/a.py": ABSTRACT}, 1),
    (wrong_classes, {"orbits/orbit.py": ABSTRACT, "orbits/a.py": ABSTRACT}, 2),
    (wrong_classes, {"orbits/orbit.py": ABSTRACT + ABSTRACT.replace("Orbit", "DrawnOrbit")}, 0),
    (wrong_classes, {"inference/posterior.py": ABSTRACT}, 0),
    (wrong_classes, {"a/b.py": ABSTRACT, "a/c.py": "from typing import Protocol\nclass D(Protocol): ..."}, 0),
    (second_collapsed_bounds, {"a.py": "def collapsed_bound(totals): ..."}, 0),
    (second_collapsed_bounds, {"a.py": "def collapsed_bound(): ...", "b.py": "def lower_bound(): ..."}, 1),
    (second_hessians, {"a.py": "def finite_difference_hessian(): ...\ndef hessian(): ..."}, 0),
    (second_hessians, {"a.py": "def finite_difference_hessian(): ...\ndef difference_hessian(): ..."}, 1),
    (second_drivers, {"a.py": "def f():\n    minimize(g, method='L-BFGS-B')"}, 0),
    (second_drivers, {"a.py": "m = 'L-BFGS-B'", "b.py": "minimize(f, method='L-BFGS-B')"}, 1),
    (second_drivers, {"a.py": "m = 'L-BFGS-B'", "b.py": "from scipy.optimize import fmin_l_bfgs_b"}, 1),
    (second_proposals, {"a.py": "class StudentProposal: ..."}, 0),
    (second_proposals, {"a.py": "class StudentProposal: ...", "b.py": "class Proposal: ..."}, 1),
    (second_hyperpriors, {"inference/hyperpriors.py": "def log_prior(a):\n    a.named_priors()"}, 0),
    (second_hyperpriors, {"a.py": "def log_prior(a): ...\nlambda a: a.log_prob(0)"}, 2),
    (second_jitters, {"likelihoods.py": "import torch\ntorch.linalg.cholesky(a)"}, 0),
    (second_jitters, {"inference/linear_algebra.py": "import torch\ntorch.linalg.cholesky_ex(a)"}, 0),
    (second_jitters, {"inference/a.py": "from torch import linalg\nlinalg.cholesky_ex(a)"}, 1),
    (second_laplace_evidences, {"a.py": "def laplace_evidence(): ...\ndef laplace(): ..."}, 0),
    (second_laplace_evidences, {"a.py": "def evidence_by_laplace(): ...\ndef _laplace_evidence(): ..."}, 2),
    (second_laplace_evidences, {"a.py": "def laplace_evidence(): ...\n" * 3}, 1),
    (second_latent_models, {"a.py": PARTS.replace("Name", "LatentModel")}, 0),
    (second_latent_models, {"a.py": PARTS, "b.py": "class B:\n  process: int\n  functional: int"}, 1),
    (second_latent_models, {"a.py": "class A:\n  process: int\n  functional: int\n  likelihood: int"}, 1),
    (second_inducing_factors, {"a.py": FACTOR}, 0),
    (second_inducing_factors, {"a.py": FACTOR, "b.py": FACTOR.replace("inducing_factor", "other")}, 1),
    (second_vocabularies, {"estimators/invariances.py": "a = ('cyclic', 'sign', 'flip', 'shear')"}, 0),
    (second_vocabularies, {"report/a.py": "a = ('cyclic', 'sign', 'other', 'flip')"}, 0),
    (second_vocabularies, {"report/a.py": "a = ['cyclic', 'sign', 'flip', 'shear']"}, 1),
    (second_vocabularies, {"cli/a.py": "a = {'cyclic': 1, 'sign': 2, 'none': 3, 'affine': 4}"}, 1),
    (private_access, {"orbits/a.py": PRIVATE, "orbits/b.py": "def f(a):\n    return a._x + a._f()"}, 0),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "class B:\n  def g(self):\n    self._x"}, 0),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "class B:\n  _x = 0\nB()._x"}, 0),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "def f(a):\n  _x = 0\n  a._x"}, 1),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "class B:\n  def f(self):\n    super()._f()"}, 0),
    (private_access, {"cli/b.py": "import sys\nfrom torch import _C\nsys._getframe()\nf.__name__"}, 0),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "def f(a):\n    return a._x + a.a._f()"}, 2),
    (private_access, {"orbits/a.py": PRIVATE, "losses.py": "def f(a):\n    a._x = 0"}, 1),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "hasattr(a, '_x')\ngetattr(a, '_f', 0)"}, 2),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "vars(a)['_x']\nattrgetter('a._x')"}, 2),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "from house.orbits.a import _A, _g"}, 2),
    (private_access, {"orbits/a.py": PRIVATE, "orbits/b.py": "from house.orbits.a import _A, _g"}, 0),
    (private_access, {"orbits/_c.py": "", "cli/b.py": "from house.orbits._c import d"}, 1),
    (private_access, {"orbits/a.py": PRIVATE, "cli/b.py": "from house.orbits import a\na._g()"}, 1),
    (open_types, {"a.py": "a: Any\n" * (MOST_OPEN_TYPES - 1) + "def f(*a: Any) -> Any: ..."}, 0),
    (open_types, {"a.py": "a: Any\n" * MOST_OPEN_TYPES, "b.py": "def f(a: Any): ..."}, 1),
]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield tmp_path / "src" / "house"
    for name in [name for name in sys.modules if name.partition(".")[0] == "house"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("check", "files", "times"), MADE_UP, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_checker_sees_a_broken_rule(check: Checker, files: dict[str, str], times: int, house: Path):
    for name, text in files.items():
        file = (house / name).resolve()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    found = check(house)
    assert len(found) == times, found


def test_every_checker_is_seen_to_fail():
    assert {check for check, _, times in MADE_UP if times} == set(CHECKERS)


NAMED_FILE = re.compile(r"[\w/]*\w\.py\b")
DOCUMENTS = ["CONTRIBUTING.md", "docs/architecture.md", "docs/decisions"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_files_that_exist(document: str):
    place = ROOT / document
    pages = sorted(place.glob("*.md")) if place.is_dir() else [place]
    named = {each for page in pages for each in NAMED_FILE.findall(page.read_text(encoding="utf-8"))}
    tops = (PACKAGE, *(ROOT / name for name in ("benchmarks", "examples", "tests")))
    files = [file.as_posix() for top in tops for file in top.rglob("*.py")]
    assert named
    missing = [each for each in sorted(named) if not any(file.endswith(f"/{each}") for file in files)]
    assert not missing, f"{document} names {', '.join(missing)}"
