"""EnvPool, imported without the code of the families that are not used.

`import envpool` imports the package of each family of environments, but needs
only the package's module `registration`, which adds the family's names to the
registry. The packages load Matplotlib and all native libraries, which costs a
thin actor 0.75 s of CPU time and 92 MB, although it uses one family. Here the
registrations run without their packages. Every environment can still be made,
which imports its family's package.
"""

import ast
import contextlib
import importlib
import importlib.util
import pathlib
import re
import sys
import types as python_types
from collections.abc import Iterator, Sequence
from importlib import abc, machinery
from typing import Any

# EnvPool's module that imports all registrations.
_ENTRY = "envpool.entry"
_REGISTRATION = re.compile(r"envpool(\.\w+)+\.registration")


def envpool() -> Any:
  """Returns the module `envpool`, which the first call imports.

  EnvPool imports JAX. Processes of users' environments do not call this
  function, and so start in 0.3 seconds instead of 3.
  """
  with _replaced_entry():
    return importlib.import_module("envpool")


@contextlib.contextmanager
def _replaced_entry() -> Iterator[None]:
  finder = _Finder()
  sys.meta_path.insert(0, finder)
  try:
    yield
  finally:
    sys.meta_path.remove(finder)


class _Finder(abc.MetaPathFinder):
  """Replaces the module `envpool.entry` if it only imports registrations.

  If another version of EnvPool has other code there, that code runs.
  """

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: python_types.ModuleType | None = None,
  ) -> machinery.ModuleSpec | None:
    del target
    if fullname != _ENTRY or not path:
      return None
    parent = pathlib.Path(path[0]).parent
    try:
      names = _imported((parent / "envpool" / "entry.py").read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
      return None
    files = {
      name: parent.joinpath(*name.split(".")).with_suffix(".py")
      for name in names
    }
    if not all(file.is_file() for file in files.values()):
      return None
    return machinery.ModuleSpec(fullname, _Loader(files))


class _Loader(abc.Loader):
  """Runs registrations in place of `envpool.entry`."""

  def __init__(self, files: dict[str, pathlib.Path]) -> None:
    self._files = files

  def exec_module(self, module: python_types.ModuleType) -> None:
    for name, file in self._files.items():
      spec = importlib.util.spec_from_file_location(name, file)
      assert spec is not None and spec.loader is not None
      registration = importlib.util.module_from_spec(spec)
      # A later import, such as a user's, must not register the names again.
      sys.modules[name] = registration
      spec.loader.exec_module(registration)


def _imported(source: str) -> list[str]:
  """Returns the names of the registrations that a module's source imports.

  Raises:
    ValueError: the source has anything but these imports.
  """
  statements = ast.parse(source).body
  if ast.get_docstring(ast.Module(statements, [])) is not None:
    statements = statements[1:]
  names: list[str] = []
  for statement in statements:
    if not isinstance(statement, ast.Import):
      raise ValueError(ast.unparse(statement))
    names += [alias.name for alias in statement.names]
  if unknown := [x for x in names if not _REGISTRATION.fullmatch(x)]:
    raise ValueError(unknown)
  return names
