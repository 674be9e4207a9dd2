"""Experiments: what they are made of, and how they are found by name."""

import dataclasses
import importlib
import importlib.util
import pathlib
import sys
import types as python_types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import seedx
from seedx import types
from seedx.app.cli import configs
from seedx.app.cli import presets as presets_lib

if TYPE_CHECKING:  # It would import JAX.
  from seedx.runtime import process

C = TypeVar("C", bound="process.Config")

# The name of the experiment in a module.
_ATTRIBUTE = "EXPERIMENT"


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[C]):
  """A pipeline's config, and its presets for other environments and agents.

  Presets, made by `preset`, apply in this order: `images` or `continuous`,
  `recurrent`, `by_agent`. With `images` and `continuous` come the agent's own
  values, of its config's methods `for_images` (for MinAtar `for_minatar`) and
  `for_continuous`, if it has them.

  Attributes:
    config: the defaults, with the agent that learns if no other is named.
    images: preset for the frames of games; None for none.
    continuous: preset for continuous actions without images; None for none.
    recurrent: preset for an agent with a memory, or any function from config to
      config.
    agents: configs that `--agent` may name, if it may.
    by_agent: the same for some of them.
  """

  config: C
  images: presets_lib.Preset | None = None
  continuous: presets_lib.Preset | None = None
  recurrent: Callable[[C], C] | None = None
  agents: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  by_agent: Mapping[str, Callable[[C], C]] = dataclasses.field(
    default_factory=dict
  )

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a function as a preset for environments."""
    for preset in (self.images, self.continuous):
      if not isinstance(preset, presets_lib.Preset | None):
        raise types.ConfigError(
          "expected presets for images and continuous actions that app.preset"
          f" made, found {preset}"
        )

  def with_agent(self, name: str) -> C:
    """Returns the defaults with the agent of a name, and its own preset.

    Args:
      name: of the agent; empty for the default's.

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
    config = self._with_only(name)
    return self.by_agent[name](config) if name in self.by_agent else config

  def _with_only(self, agent: str) -> C:
    """The defaults with another agent, without its preset."""
    config: Any = self.config
    return dataclasses.replace(config, agent=self.agents[agent])

  def with_presets(
    self, config: C, agent: str = "", presets: presets_lib.Kind = "auto"
  ) -> tuple[C, list[presets_lib.Applied]]:
    """Returns a config with its presets, and what each of them changed.

    Args:
      config: of the pipeline.
      agent: name of its agent in `agents`; empty for the default's.
      presets: the kind of environment whose presets apply: "images",
        "continuous", "none", or "auto" for what the environment is.

    Raises:
      types.ConfigError: the environment does not exist, or the experiment has
        no such presets.
    """
    applied, agent = [], agent or self.default_agent
    for name, measured, change in self._presets(config, agent, presets):
      # The config of a named agent has the agent's preset already.
      before = self._with_only(agent) if name == agent else config
      values = configs.differing(before, change(before))
      applied.append(presets_lib.Applied(name, values, measured))
      config = change(config)
    return config, applied

  def _presets(
    self, config: C, agent: str, kind: presets_lib.Kind
  ) -> Iterator[tuple[str, bool, Callable[[C], C]]]:
    """Yields the name of each preset, whether it is measured, and itself."""
    if kind not in self.kinds:
      raise types.ConfigError(
        f"expected presets {', '.join(self.kinds)}, found {kind!r}"
      )
    if kind == "auto":
      kind = presets_lib.kind(config.env, self.images)
    preset = {"images": self.images, "continuous": self.continuous}.get(kind)
    if preset is not None:
      name = preset.games if kind == "images" else "continuous actions"
      # What has been measured, has been with the default's agent.
      measured = preset.measured and agent == self.default_agent
      yield name, measured, presets_lib.with_agents(preset, name)
    if self.recurrent and getattr(config.agent, "recurrent", False):
      yield "a memory", presets_lib.is_measured(self.recurrent), self.recurrent
    if agent in self.by_agent:
      own = self.by_agent[agent]
      yield agent, presets_lib.is_measured(own), own

  @property
  def kinds(self) -> tuple[str, ...]:
    """The presets that `--presets` may name."""
    lacks = {"images": not self.images, "continuous": not self.continuous}
    return tuple(kind for kind in presets_lib.KINDS if not lacks.get(kind))

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
    "__init__",
    "benchmark",
    "certificates",
    "chaos",
    "compare",
    "evaluate",
    "export",
    "plot",
    "sweep",
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
