"""Runs the notebooks of the guides as Jupyter does, without Jupyter: code cells in order, in one namespace.

Two of IPython's ways of writing are known: a line `!oblivionis …`, and a cell `%%writefile NAME`. Simulated clients
answer in this process. `python tests/support/notebooks.py FILE…` writes what the cells print into the files.
"""

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from support.commands import call, in_process
from support.inprocess import InProcessGrid

import oblivionis
from oblivionis.server import simulation

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "guides" / "examples" / "notebooks"


def code_cells(file):
    """The code cells of a notebook."""
    return [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run(file, folder):
    """What each code cell prints, with paths from `folder`, the working directory, in which there is `docs`."""
    (folder / "docs").symlink_to(ROOT / "docs")
    said, names = [], {"__name__": "__main__", "_command": _command}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setattr(simulation, "simulate", in_process)
        patch.setattr(oblivionis, "simulated_clients", _clients, raising=False)
        for cell in code_cells(file):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                _execute("".join(cell["source"]), names)
            said.append(out.getvalue().replace(f"{folder}/", ""))
    return said


def _execute(source, names):
    """Run a cell and, as Jupyter does, show the value of its last line."""
    if found := re.match(r"%%writefile (\S+)\n", source):
        Path(found[1]).write_text(source[found.end() :], encoding="utf-8")
        print(f"Writing {found[1]}")
        return
    tree = ast.parse(re.sub(r"^!(.*)$", lambda line: f"_command({line[1]!r})", source, flags=re.MULTILINE))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None and (value := eval(compile(ast.Expression(last.value), "cell", "eval"), names)) is not None:
        print(value)


def _command(line):
    """A line of the shell: `oblivionis` in this process, or a copy of a file."""
    program, *arguments = shlex.split(line)
    assert program == "oblivionis", line
    files = [sorted(Path().glob(a)) if "*" in a else [a] for a in arguments]
    done = call(*(str(a) for found in files for a in found))
    assert done.code == 0, done.err
    print(done.out, end="")


@contextlib.contextmanager
def _clients(client_app, clients):
    module, name = client_app.split(":")
    app = getattr(importlib.import_module(module), name)

    def silent(**given):
        with contextlib.redirect_stdout(io.StringIO()):
            return app(**given)

    yield InProcessGrid(silent, clients)


def main():
    for name in sys.argv[1:]:
        file = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder:
            said = run(file, Path(folder))
        notebook = json.loads(file.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, (cell, text) in enumerate(zip(cells, said, strict=True), 1):
            stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
            cell |= {"execution_count": number, "outputs": [stream] if text else []}
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
