"""Laws of the house that read the source, and the two that start it cold.

The direction of imports between floors is import-linter's (`lint-imports`, see pyproject.toml); what it
cannot say is said here: imports inside functions against imports at module level, files, names, sizes.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kvroof"
HEAVY = {"jax", "jaxlib", "optax", "flax", "plotly", "numpy", "scipy"}
ARRAYS = HEAVY - {"plotly"}
FILE_MODULES = {"glob", "io", "mmap", "os", "shutil", "sqlite3", "tempfile"}
FILE_CALLS = {
    "Path", "iterdir", "mkdir", "open", "read_bytes", "read_text", "rglob", "unlink", "write_bytes",
    "write_html", "write_image", "write_text",
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One source file: its dotted name below `kvroof`, its path inside it, and its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def floor(self) -> str:
        return self.path.parts[0] if len(self.path.parts) > 1 else ""


class Import(NamedTuple):
    """One imported module: its full name, where, and whether it runs when its module is imported."""

    target: str
    line: int
    at_module_level: bool

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]


def _modules() -> list[Module]:
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE)
        parts = [part for part in path.with_suffix("").parts if part != "__init__"]
        found.append(Module(".".join(parts), path, ast.parse(file.read_text(), str(path))))
    return found


MODULES = _modules()


def _guards_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _imports(module: Module) -> Iterator[Import]:
    """Yield every import that can run: what only the type checker reads is left out."""

    def walk(node: ast.AST, at_module_level: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, at_module_level)
            elif isinstance(child, ast.ImportFrom):
                package = ["kvroof", *module.path.parent.parts]
                above = package[: len(package) - child.level + 1] if child.level else []
                origin = ".".join([*above, *filter(None, [child.module])])
                for alias in child.names:
                    yield Import(f"{origin}.{alias.name}", child.lineno, at_module_level)
            elif _guards_types(child):
                for alternative in child.orelse:
                    yield from walk(alternative, at_module_level)
            else:
                inside = isinstance(child, Function | ast.Lambda)
                yield from walk(child, at_module_level and not inside)

    yield from walk(module.tree, True)


def _imports_of(libraries: set[str], allowed: set[str], *, late_too: bool) -> list[str]:
    """Return where `libraries` are imported outside the `allowed` floors."""
    return [
        f"kvroof/{module.path}:{found.line}: {found.target}"
        for module in MODULES
        if module.floor not in allowed
        for found in _imports(module)
        if found.library in libraries and (late_too or found.at_module_level)
    ]


def _functions(module: Module) -> Iterator[Function]:
    return (node for node in ast.walk(module.tree) if isinstance(node, Function))


def _public(module: Module) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield the public functions and classes of a module, and the public methods of those classes."""
    for node in module.tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(inner, Function) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def _floors() -> list[str]:
    """Return the floors of the import contract, highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in config["contracts"] if contract["type"] == "layers")
    return [floor for layer in layers for floor in re.findall(r"\w+", layer)]


def _folders(root: Path) -> list[Path]:
    return [folder for folder in sorted(root.rglob("*")) if folder.is_dir() and any(folder.glob("*.py"))]


def test_every_folder_is_a_floor_of_the_contract():
    assert {folder.name for folder in PACKAGE.iterdir() if folder.is_dir()} - {"__pycache__"} <= set(
        _floors()
    )


def test_every_folder_of_modules_is_a_package_that_the_import_contract_sees():
    assert [str(folder) for folder in _folders(PACKAGE) if not (folder / "__init__.py").exists()] == []


def test_the_package_root_holds_only_the_public_api():
    assert {module.name for module in MODULES if module.floor == ""} <= {"", "__main__"}


def test_no_module_is_longer_than_400_lines():
    lengths = {str(m.path): len((PACKAGE / m.path).read_text().splitlines()) for m in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > 400} == {}


def test_no_module_is_a_drawer_for_anything():
    drawers = {"common", "helper", "helpers", "misc", "util", "utils"}
    assert [str(m.path) for m in MODULES if m.path.stem in drawers] == []


def test_no_public_function_shares_the_name_of_a_folder():
    folders = {folder.name for folder in _folders(PACKAGE)} | set(_floors())
    clashes = [
        f"kvroof/{m.path}: {name}"
        for m in MODULES
        for name, node in _public(m)
        if isinstance(node, Function) and name in folders
    ]
    assert clashes == []


def test_everything_public_has_a_docstring():
    bare = [
        f"kvroof/{m.path}: {name}"
        for m in MODULES
        for name, node in _public(m)
        if not ast.get_docstring(node)
    ]
    assert bare + [f"kvroof/{m.path}" for m in MODULES if not ast.get_docstring(m.tree)] == []


def test_no_function_passes_its_keywords_through():
    passed = [
        f"kvroof/{m.path}:{call.lineno}: **{function.args.kwarg.arg} of {function.name}"
        for m in MODULES
        for function in _functions(m)
        if function.args.kwarg
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg is None
        and isinstance(keyword.value, ast.Name)
        and keyword.value.id == function.args.kwarg.arg
    ]
    assert passed == []


def test_only_the_cli_and_the_view_print():
    prints = [
        f"kvroof/{m.path}:{node.lineno}"
        for m in MODULES
        if m.floor not in {"cli", "view"}
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


def test_plotly_is_imported_only_by_the_view():
    assert _imports_of({"plotly"}, {"view"}, late_too=True) == []


def test_click_is_imported_only_by_the_cli():
    assert _imports_of({"click"}, {"cli"}, late_too=True) == []


def test_rich_is_imported_only_by_the_view_and_the_cli():
    assert _imports_of({"rich"}, {"view", "cli"}, late_too=True) == []


def test_floors_of_exact_integers_never_import_array_libraries():
    exact = {"spec", "catalog", "cost", "memory", "schedule", "view"}
    others = {m.floor for m in MODULES} - exact
    assert _imports_of(ARRAYS, others, late_too=True) == []


def test_heavy_libraries_are_imported_late_below_the_floors_that_live_on_arrays():
    assert _imports_of(ARRAYS, {"engine", "calibration", "search"}, late_too=False) == []


def test_the_engine_never_sees_the_roofline():
    seen = [
        f"kvroof/{m.path}:{found.line}: {found.target}"
        for m in MODULES
        if m.floor == "engine"
        for found in _imports(m)
        if f"{found.target}.".startswith("kvroof.roofline.")
    ]
    assert seen == []


def test_files_are_touched_only_at_the_edges():
    edges = {"catalog", "calibration", "cli"}
    files = {Path("serving/demand/traces.py"), Path("view/report.py")}
    inner = [m for m in MODULES if m.floor not in edges and m.path not in files]
    touched = [
        f"kvroof/{m.path}:{i.line}: {i.target}"
        for m in inner
        for i in _imports(m)
        if i.library in FILE_MODULES
    ]
    for module in inner:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                touched += [f"kvroof/{module.path}:{node.lineno}: {called}()"] if called in FILE_CALLS else []
    assert touched == []


def _cold(code: str) -> tuple[int, set[str]]:
    """Return the exit code of `code` in a fresh interpreter and the top-level packages it imported."""
    program = (
        "import json, sys\n"
        "code = 0\n"
        "try:\n"
        f"    {code}\n"
        "except SystemExit as stop:\n"
        "    code = stop.code or 0\n"
        "loaded = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "print('\\n' + json.dumps([code, loaded]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    status, loaded = json.loads(done.stdout.splitlines()[-1])
    return status, set(loaded)


def test_importing_the_package_loads_no_heavy_library():
    status, loaded = _cold("import kvroof")
    assert (status, loaded & HEAVY) == (0, set())


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "list models",
        "list hardware",
        "show llama-3.1-8b",
        "kv llama-3.1-8b",
        "kv llama-3.1-8b --json",
        "fit llama-3.1-8b h100-sxm",
    ],
)
def test_a_verb_that_only_counts_bytes_loads_no_heavy_library(command: str):
    argv = ["kvroof", *command.split()]
    status, loaded = _cold(f"sys.argv = {argv!r}; from kvroof.cli.main import run; run()")
    assert (status, loaded & HEAVY) == (0, set())
