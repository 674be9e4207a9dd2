"""Builds the notebooks of this folder from their sources, with outputs.

  python -m colab.build
  python -m colab.build losses quickstart

`<name>.py` is the source of `<name>.ipynb`, in Jupytext's percent format; a
cell with the metadata `writes="FILE"` becomes a cell that writes FILE. Every
notebook gets a badge that opens it in Colab, and a cell that installs seedx if
it is missing. Notebooks run from top to bottom in an empty directory. They have
no random ids, no times of cells and no paths of the machine.
"""

import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import jupyter_client
import jupytext
import nbclient
import nbformat
from jupyter_client import kernelspec

from seedx import REPOSITORY

FOLDER = pathlib.Path(__file__).parent
NAMES = (
  "quickstart",
  "losses",
  "pipelines",
  "bring_your_own",
  "not_learning",
  "many_seeds",
  "self_play",
  "recordings",
  "population",
)
# Further packages that a notebook's first cell installs with seedx.
_ALSO: Mapping[str, str] = {"self_play": " mctx"}

_BADGE = (
  "[![Open in Colab]"
  "(https://colab.research.google.com/assets/colab-badge.svg)]"
  "(https://colab.research.google.com/github/{repository}/blob/main/colab/"
  "{name}.ipynb)"
)
_INSTALL = """\
import importlib.util
import os
import sys
import warnings

try:
  import seedx
except ImportError:  # This takes a minute or two.
  # JAX comes with the plugin for this runtime's accelerator.
  plugins = dict(cuda13="jax_cuda13_plugin", cuda12="jax_cuda12_plugin", tpu="libtpu")
  extra = next((k for k, v in plugins.items() if importlib.util.find_spec(v)), "")
  %pip install -q "seedx[{{extra}}] @ git+https://github.com/{repository}"{also}

# The networks here are small: the CPU is faster. For images, use "" instead.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs that this notebook starts may need memory of the accelerator, too.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
# `!` forks this process only to start a program that does not use its JAX.
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
# A notebook is not a terminal: progress is printed as rows of a table.
os.environ["TERM"] = "dumb"
"""
# The path of a cell's source in warnings.
_CELL = re.compile(r"\S+/ipykernel_\d+/\d+\.py")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def main(argv: Sequence[str] | None = None) -> int:
  """Builds notebooks, all if none is named; returns the exit status."""
  names = sys.argv[1:] if argv is None else list(argv)
  unknown = sorted(set(names) - set(NAMES))
  if unknown:
    print(f"expected {', '.join(NAMES)}, found {unknown}", file=sys.stderr)
    return 2
  for name in names or NAMES:
    built = notebook(name)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
      execute(built, pathlib.Path(directory))
    text = nbformat.writes(built)
    (FOLDER / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")
    seconds = time.monotonic() - start
    print(f"{name}: {seconds:.0f} s, {len(text) / 1e3:.0f} kB", flush=True)
  return 0


def notebook(name: str) -> nbformat.NotebookNode:
  """Returns the notebook of a source, without outputs."""
  source = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")
  new = nbformat.v4
  cells = [
    new.new_markdown_cell(_BADGE.format(repository=REPOSITORY, name=name)),
    new.new_code_cell(
      _INSTALL.format(repository=REPOSITORY, also=_ALSO.get(name, "")).strip()
    ),
  ]
  for cell in source.cells:
    path = cell.metadata.get("writes")
    if path:
      cell.source = f"%%writefile {path}\n{cell.source}"
    cell.metadata = {}
    cells.append(cell)
  for i, cell in enumerate(cells):
    # Hashes the cell's text, so that a new cell does not change other ids.
    twins = sum(other.source == cell.source for other in cells[:i])
    text = f"{cell.source}{twins or ''}"
    cell.id = hashlib.sha256(text.encode()).hexdigest()[:8]
  metadata = {
    "kernelspec": {
      "display_name": "Python 3",
      "language": "python",
      "name": "python3",
    },
    "language_info": {"name": "python"},
  }
  return new.new_notebook(cells=cells, metadata=metadata)


def execute(
  built: nbformat.NotebookNode,
  directory: pathlib.Path,
  timeout_seconds: int = 600,
) -> None:
  """Runs a notebook with this Python and this repository's code.

  Args:
    built: notebook to run, which receives the outputs.
    directory: empty directory in which it runs.
    timeout_seconds: longest time of a cell.

  Raises:
    nbclient.exceptions.CellExecutionError: a cell fails, or a command in it.
    RuntimeError: an output cannot be drawn.
  """
  directory = directory.resolve()
  sources = [cell.source for cell in built.cells]
  for cell in built.cells:
    if cell.cell_type == "code" and re.search("^!", cell.source, re.MULTILINE):
      cell.source += "\nassert _exit_code == 0, _exit_code"
  with tempfile.TemporaryDirectory() as kernels:
    client = nbclient.NotebookClient(
      built,
      km=_manager(pathlib.Path(kernels)),
      timeout=timeout_seconds,
      resources={"metadata": {"path": str(directory)}},
      record_timing=False,
      coalesce_streams=True,
    )
    try:
      # Without `cleanup_kc`, the kernel of a given manager would live on.
      client.execute(env=_environment(kernels), cleanup_kc=True)
    finally:
      for cell, source in zip(built.cells, sources, strict=True):
        cell.source = source
  for cell in built.cells:
    if cell.cell_type == "code":
      _check(cell)
      cell.metadata = {}
      cell.outputs = _tidied(cell.outputs, directory)
  # Drops the version of Python that the client wrote.
  built.metadata.language_info = {"name": "python"}


def _manager(directory: pathlib.Path) -> jupyter_client.AsyncKernelManager:
  """Makes the manager of a kernel that runs this Python."""
  path = directory / "this" / "kernel.json"
  path.parent.mkdir()
  argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
  content = {"argv": argv, "display_name": "Python 3", "language": "python"}
  path.write_text(json.dumps(content), encoding="utf-8")
  specs = kernelspec.KernelSpecManager(
    kernel_dirs=[str(directory)], ensure_native_kernel=False
  )
  return jupyter_client.AsyncKernelManager(
    kernel_name="this",
    kernel_spec_manager=specs,
    transport="ipc",
    ip=str(directory / "ipc"),
  )


def _environment(directory: str) -> dict[str, str]:
  """Returns the kernel's environment variables; `python` is this Python."""
  environment = {
    key: value
    for key, value in os.environ.items()
    if key not in ("XLA_FLAGS", "FORCE_COLOR")
  }
  first = {
    "PATH": str(pathlib.Path(sys.executable).parent),
    "PYTHONPATH": str(FOLDER.parent.resolve()),
  }
  for key, value in first.items():
    environment[key] = os.pathsep.join(
      [value, *filter(None, [environment.get(key)])]
    )
  return environment | {
    "IPYTHONDIR": directory,
    "JAX_PLATFORMS": "cpu",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
  }


def _check(cell: nbformat.NotebookNode) -> None:
  """Raises RuntimeError for an error that the client ignores."""
  for output in cell.outputs:
    if output.output_type == "error":
      raise RuntimeError(f"{output.ename}: {output.evalue}, from {cell.source}")


def _tidied(
  outputs: Sequence[nbformat.NotebookNode], directory: pathlib.Path
) -> list[nbformat.NotebookNode]:
  """Returns outputs without paths of this machine."""
  kept = []
  for output in outputs:
    if output.output_type == "stream":
      output.text = _plain(output.text, directory)
    for kind, value in output.get("data", {}).items():
      if kind.startswith("text/"):
        output.data[kind] = _plain(value, directory)
    kept.append(output)
  return kept


def _plain(text: str, directory: pathlib.Path) -> str:
  text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
  text = _CELL.sub("cell", text)
  return text.replace(f"{directory}/", "")


if __name__ == "__main__":
  sys.exit(main())
