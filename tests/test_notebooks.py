"""The notebooks run, hold no output, and compute nothing of their own."""

import ast
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install '.[notebooks]'")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FIVE = (
    "01-footprint-by-architecture",
    "02-roofline-and-decode-bound",
    "03-calibrating-this-machine",
    "04-operating-point-by-gradient",
    "05-prefill-or-decode",
)
NO_COMPLAINTS = "import warnings; warnings.simplefilter('error')"
"""Run first in every kernel: a warning is an error here as well."""
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    """Return a notebook."""
    return nbformat.read(path, as_version=4)


def code(path):
    """Return the sources of its code cells."""
    return [cell.source for cell in read(path).cells if cell.cell_type == "code"]


def test_the_five_questions_are_there():
    assert tuple(path.stem for path in NOTEBOOKS) == FIVE


@each
def test_a_notebook_is_stored_without_what_a_run_leaves(path):
    nbformat.validate(read(path))
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in cells] == [[]] * len(cells)
    assert [cell.execution_count for cell in cells] == [None] * len(cells)
    assert re.search(r"(?<![\w.:/])/(?:home|root|tmp|work|Users)\b|[A-Z]:\\", path.read_text("utf-8")) is None


@each
def test_a_notebook_computes_nothing(path):
    """Only signs and constants stand in its arithmetic: the formulas are the package's."""
    sums = [
        ast.unparse(node)
        for source in code(path)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp)
        and not all(isinstance(leaf, ast.Constant) for leaf in (node.left, node.right))
    ]
    assert sums == []
    assert not any(
        re.search(r"^\s*(?:def|class|lambda)\b", source, flags=re.MULTILINE) for source in code(path)
    )


@each
def test_a_notebook_asks_one_question_and_teaches_between_its_cells(path):
    cells = read(path).cells
    first = cells[0].source
    assert first.startswith("# ")
    assert first.splitlines()[0].count("?") == 1
    assert cells[-1].cell_type == "markdown"
    kinds = [cell.cell_type for cell in cells]
    assert all(not (a == b == c == "code") for (a, b), (_, c) in pairwise(pairwise(kinds)))


@each
@pytest.mark.skipif(find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="'.[notebooks]'")
@pytest.mark.filterwarnings("ignore")  # those of the client and of its loop, not of the notebook
def test_a_notebook_runs(path, monkeypatch, tmp_path):
    """With warnings as errors in its kernel, in a folder of its own; every cell says or draws something."""
    from nbclient import NotebookClient

    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = read(path)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(NO_COMPLAINTS))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells[1:] if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    assert [
        o for cell in cells for o in cell.outputs if o.output_type == "stream" and o.name == "stderr"
    ] == []
    drawn = [
        o.data for cell in cells for o in cell.outputs if o.output_type in ("display_data", "execute_result")
    ]
    assert all("application/vnd.plotly.v1+json" in data or "text/html" in data for data in drawn)
