"""Functions of the user's, by their names.

A process that needs a function of a module imports it. A function of the
program itself, a script or a notebook, has no module to import: a new process
would have to run the script again, and cannot read the notebook. So a config
brings such a function to the other processes of the run, pickled by value, in
the pickle that it is sent in anyway. If a script's function cannot be pickled,
these processes import the script. The function's name remains what
`config.json` records; later programs import it by that name, if a script has
it.
"""

import contextlib
import functools
import importlib
import importlib.util
import pathlib
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from seedx import types

_PROGRAM = "__main__"

# ID of this process; the operating system's may be those of processes on other
# machines, and in other containers, too.
PROCESS = secrets.token_hex(8)

# Functions of the program that started this process, pickled, by name.
_brought: dict[str, bytes] = {}
_this_thread = threading.local()


def name_of(function: Any) -> str:
  """Returns `module:function` for a function or class at the top of a module.

  Raises:
    types.ConfigError: it is not callable, or no module has it.
  """
  if not callable(function):
    raise types.ConfigError(
      "expected the name of an environment, or a function or class that makes"
      f" one, found {_shown(function)}"
    )
  own = getattr(function, "__name__", "")
  modules = [getattr(function, "__module__", None) or "", _PROGRAM]
  for module in dict.fromkeys(modules):
    names = vars(sys.modules[module]) if module in sys.modules else {}
    # Notebooks keep results under names that begin with an underscore.
    for name in [own, *(x for x in list(names) if not x.startswith("_"))]:
      if name and names.get(name) is function:
        return f"{module}:{name}"
  raise types.ConfigError(
    "expected a function or class at the top of a module, a script or a"
    f" notebook, found {_shown(function)}: give it a name there with def, and"
    " pass its arguments as env_options"
  )


def canonical(name: str) -> str:
  """Returns a function's name, with a script's own instead of `__main__`."""
  module, _, function = name.partition(":")
  # In another process, `__main__` is not the program that has the function.
  is_own = name not in _brought and function in vars(sys.modules[_PROGRAM])
  program = _program() if module == _PROGRAM and is_own else None
  return f"{program}:{function}" if program else name


def load(name: str) -> Any:
  """Returns the function with a name; modules of the directory come first.

  Raises:
    types.ConfigError: this program has no such function.
    Exception: the module cannot be imported, which may raise anything.
  """
  if name in _brought:
    return _unpickled(_brought[name])
  module, _, function = name.partition(":")
  if module in (_PROGRAM, _program()):
    if function in vars(sys.modules[_PROGRAM]):
      return getattr(sys.modules[_PROGRAM], function)
    raise types.ConfigError(
      f"expected {name} in this program, found no {function}; other programs do"
      " not have the functions of a notebook: write them into a file (there:"
      f" %%writefile my_env.py), and name it my_env:{function}"
    )
  here = str(pathlib.Path.cwd())
  if sys.path[0] != here:
    sys.path.insert(0, here)
  with importing(module):
    return getattr(importlib.import_module(module), function)


def check_not_importing(name: str = "") -> None:
  """Checks that nothing trains because a script is imported for a function.

  Args:
    name: only a script with the function of this name is a fault; any if "".

  Raises:
    types.ConfigError: this thread imports a script, whose code calls this.
  """
  wanted = name.partition(":")[0]
  for module in getattr(_this_thread, "modules", ()):
    if wanted in ("", module):
      raise types.ConfigError(
        f"expected {module} to train only where it is the program, found that"
        " it also trains when another process imports it for what it defines:"
        ' put the training under if __name__ == "__main__":'
      )


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
  """Marks code in which this thread imports a module, perhaps a script."""
  outer = getattr(_this_thread, "modules", ())
  _this_thread.modules = (*outer, module)
  try:
    yield
  finally:
    _this_thread.modules = outer


def pickled(names: Iterable[str]) -> Mapping[str, bytes]:
  """Pickles functions of the program for `bring`; leaves out all others.

  Raises:
    types.ConfigError: a function does not exist or cannot be pickled.
  """
  program = _PROGRAM, _program()
  functions = {}
  for name in names:
    if name in _brought:
      functions[name] = _brought[name]
    elif name.partition(":")[0] in program:
      try:
        functions[name] = _by_value(name)
      except types.ConfigError:
        if name.startswith(_PROGRAM):
          raise
        # Other processes can import the script.
  return functions


def bring(functions: Mapping[str, bytes], process: str) -> None:
  """Keeps functions that `pickled` returned in the process with this ID."""
  if process != PROCESS:  # In the same process they may be out of date.
    _brought.update(functions)


def _by_value(name: str) -> bytes:
  import cloudpickle  # Only programs with such functions need it.

  function = load(name)
  try:
    return cloudpickle.dumps(function)
  except Exception as error:  # Pickling may raise anything.
    reason = " ".join(f"{error}".split())
    raise types.ConfigError(
      f"expected {name} to use only what can be sent to other processes, found"
      f" {reason}: write it into a file of its own, my_env.py, and name it"
      f" my_env:{name.partition(':')[2]}"
    ) from error


@functools.cache
def _unpickled(function: bytes) -> Callable[..., Any]:
  import cloudpickle

  return cloudpickle.loads(function)


def _program() -> str | None:
  """Returns the name under which others import this program, if they can."""
  main = sys.modules[_PROGRAM]
  if main.__spec__ is not None:  # python -m NAME
    return main.__spec__.name if main.__spec__.name != _PROGRAM else None
  path = getattr(main, "__file__", None)
  return _importable(pathlib.Path(path)) if path else None


@functools.cache
def _importable(path: pathlib.Path) -> str | None:
  try:
    spec = importlib.util.find_spec(path.stem)
    if spec is None or spec.origin is None or not path.samefile(spec.origin):
      return None
    return path.stem
  except (ImportError, OSError, ValueError):
    return None


def _shown(value: object) -> str:
  return f"{value!r:.80} of type {type(value).__name__}"
