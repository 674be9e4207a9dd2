"""Experiments: what they are made of, and how they are found by name."""

import dataclasses
import importlib
import importlib.util
import pathlib
import sys
import types as python_types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import tree

import seedx
from seedx import envs, types

if TYPE_CHECKING:  # It would import JAX.
  from seedx.runtime import process

C = TypeVar("C", bound="process.Pipeline")

# The name of the experiment in a module.
_ATTRIBUTE = "EXPERIMENT"


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[C]):
  """A pipeline's config, and what changes it for other environments.

  A change is a function from config to config, such as `configs.change` makes.
  They apply in this order: `images` or `continuous`, `recurrent`, `by_agent`.

  Attributes:
    config: the defaults, with the agent that learns if no other is named.
    images: changes for observations with images.
    continuous: changes for continuous actions, without images.
    recurrent: changes for an agent with a memory.
    agents: what `--agent` may name, if it may.
    by_agent: changes for some of them.
  """

  config: C
  images: Callable[[C], C] = lambda config: config
  continuous: Callable[[C], C] = lambda config: config
  recurrent: Callable[[C], C] = lambda config: config
  agents: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  by_agent: Mapping[str, Callable[[C], C]] = dataclasses.field(
    default_factory=dict
  )

  def with_agent(self, name: str) -> C:
    """The defaults with the agent of a name; an empty one is the default's.

    Raises:
      types.ConfigError: there is none of that name.
    """
    if not name:
      return self.config
    if name not in self.agents:
      raise types.ConfigError(
        f"invalid choice for --agent: expected {', '.join(self.agents)}, found"
        f" {name!r}"
      )
    config: Any = self.config
    return dataclasses.replace(config, agent=self.agents[name])

  def for_environment(self, config: C, agent: str = "") -> C:
    """A config changed for its environment, its memory and its agent.

    Raises:
      types.ConfigError: the environment does not exist.
    """
    for change in self.presets(config, agent).values():
      config = change(config)
    return config

  def presets(self, config: C, agent: str = "") -> dict[str, Callable[[C], C]]:
    """What changes a config for its environment, its memory and its agent.

    Raises:
      types.ConfigError: the environment does not exist.
    """
    spec = envs.spec(config.env)
    found = {}
    if _has_images(spec):
      found["images"] = self.images
    elif np.issubdtype(spec.action.dtype, np.floating):
      found["continuous"] = self.continuous
    if getattr(config.agent, "recurrent", False):
      found["recurrent"] = self.recurrent
    if agent in self.by_agent:
      found[agent] = self.by_agent[agent]
    return found

  @property
  def default_agent(self) -> str:
    """The name of the default's agent; empty where `--agent` names none."""
    default = self.config.agent
    return next((k for k, v in self.agents.items() if v == default), "")


def name_of(module: str) -> str:
  """What `config.json` calls the experiment of a module.

  Args:
    module: its `__name__`; that of a program that runs may be `__main__`.

  Returns:
    The short name of an experiment that comes with seedx, such as `ppo`; else
    `MODULE:EXPERIMENT`.
  """
  name = program_module(module)
  short = name.rpartition(".")[2]
  found = sys.modules.get(module)
  path = getattr(found, "__file__", None) or ""
  own = _shipped().get(short)
  if own is not None and pathlib.Path(path).resolve() == own:
    return short
  return f"{name}:{_ATTRIBUTE}"


def program_module(module: str) -> str:
  """A module's name, of the program that runs as one would import it."""
  if module != "__main__":
    return module
  main = sys.modules["__main__"]
  if main.__spec__ is not None:
    return main.__spec__.name
  return pathlib.Path(main.__file__ or "").stem


def shipped() -> list[str]:
  """The short names of the experiments that come with seedx."""
  doors = (
    *("__init__", "evaluate", "export", "plot", "compare", "chaos"),
    *("sweep", "benchmark", "certificates"),
  )
  return sorted(name for name in _shipped() if name not in doors)


def load(name: str) -> Experiment[Any]:
  """The experiment of a name that `name_of` gave, or that an old seedx did.

  Raises:
    types.ConfigError: it cannot be found from here.
  """
  return getattr(load_module(name), _ATTRIBUTE)


def load_module(name: str) -> python_types.ModuleType:
  """The module of such an experiment, which has it as `EXPERIMENT`.

  Raises:
    types.ConfigError: it cannot be found from here.
  """
  short = name.removeprefix("experiments.")
  try:
    if short in _shipped():
      module = _import_shipped(short)
    else:
      here = str(pathlib.Path.cwd())
      if here not in sys.path:
        sys.path.insert(0, here)
      module = importlib.import_module(name.partition(":")[0])
    if not isinstance(getattr(module, _ATTRIBUTE), Experiment):
      raise TypeError(f"its {_ATTRIBUTE} is no app.Experiment")
  except (AttributeError, ImportError, TypeError, ValueError) as error:
    raise types.ConfigError(
      f"expected {name} to be one of {', '.join(shipped())}, or to be a module"
      f" with an {_ATTRIBUTE} that can be imported from here: {error}"
    ) from error
  return module


def _shipped() -> dict[str, pathlib.Path]:
  """The files of the experiments that come with seedx, by short name.

  They lie in the package where it was built, and beside it in its repository.
  """
  package = pathlib.Path(seedx.__file__).resolve().parent
  for folder in (package / "experiments", package.parent / "experiments"):
    if folder.is_dir():
      return {path.stem: path for path in folder.glob("*.py")}
  return {}


def _import_shipped(short: str) -> python_types.ModuleType:
  """One and the same module however seedx is installed."""
  name = f"seedx.experiments.{short}"
  if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(name, _shipped()[short])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
      spec.loader.exec_module(module)
    except BaseException:
      del sys.modules[name]
      raise
  return sys.modules[name]


def _has_images(spec: types.EnvironmentSpec) -> bool:
  return any(
    leaf.dtype == np.uint8 and len(leaf.shape) == 3
    for leaf in tree.flatten(spec.observation)
  )
