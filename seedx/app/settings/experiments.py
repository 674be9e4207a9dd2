"""Experiments: their parts, and how they are loaded by name."""

import ast
import collections
import dataclasses
import importlib
import importlib.util
import pathlib
import sys
import types as python_types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import seedx
from seedx import types
from seedx.app.settings import configs, presets

if TYPE_CHECKING:  # These modules import JAX.
  from seedx.agents import base
  from seedx.runtime import process

C = TypeVar("C", bound="process.Config")

# The attribute of a module that is its experiment.
_ATTRIBUTE = "EXPERIMENT"


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[C]):
  """A pipeline's config, and its presets for other environments and agents.

  Presets apply in this order: small tasks, `images` or `continuous`,
  `recurrent`, `by_agent`. Before `images` or `continuous`, the agent's own
  values apply: its config's method `for_images` (`for_minatar` for MinAtar) or
  `for_continuous` returns them, if it exists. Those for small tasks are only
  the agent's, from `for_small`.

  Attributes:
    config: the defaults, with the default agent.
    images: preset for the frames of games, made by `preset`; None for none.
    continuous: preset for continuous actions without images, made by `preset`;
      None for none.
    recurrent: preset for an agent with a memory, or any function from config to
      config.
    agents: configs that `--agent` may select, by name; empty for no `--agent`.
    by_agent: presets for some of these agents, by name.
  """

  config: C
  images: presets.Preset | None = None
  continuous: presets.Preset | None = None
  recurrent: Callable[[C], C] | None = None
  agents: "Mapping[str, base.Config]" = dataclasses.field(default_factory=dict)
  by_agent: Mapping[str, Callable[[C], C]] = dataclasses.field(
    default_factory=dict
  )

  def __post_init__(self) -> None:
    for kind, preset in self._by_kind.items():
      if not isinstance(preset, presets.Preset):
        raise types.ConfigError(
          "expected presets for images and continuous actions made by"
          f" app.preset, found {preset}"
        )
      expected = presets.PURPOSES[kind]
      if preset.purpose(kind) not in expected:
        raise types.ConfigError(
          f"expected presets for {kind} for one of {', '.join(expected)}, found"
          f" games {preset.games!r}"
        )

  def with_agent(self, name: str) -> C:
    """Returns the defaults with an agent and its preset.

    An empty name stands for the default agent.

    Raises:
      types.ConfigError: there is no such agent.
    """
    if not name:
      return self.config
    if name not in self.agents:
      raise types.ConfigError(
        f"invalid choice for --agent: expected {', '.join(self.agents)}, found"
        f" {name!r}"
      )
    config = dataclasses.replace(self.config, agent=self.agents[name])
    return self.by_agent[name](config) if name in self.by_agent else config

  def with_presets(
    self, config: C, agent: str = "", kind: str = "auto"
  ) -> tuple[C, list[presets.Changes]]:
    """Returns a config with presets applied, and each preset's changes.

    Args:
      config: config of the pipeline.
      agent: name of its agent in `agents`; empty for the default agent.
      kind: the kind of environment whose presets apply: "small", "images",
        "continuous", "none", or "auto" for the kinds of `config.env`.

    Raises:
      types.ConfigError: the environment does not exist, or the experiment has
        no such presets.
    """
    applied, agent = [], agent or self.default_agent
    for name, measured, change in self._presets(config, agent, kind):
      before = config
      if name == agent:  # The config has the agent's preset already.
        before = dataclasses.replace(self.config, agent=self.agents[agent])
      values = configs.differing(before, change(before))
      applied.append(presets.Changes(name, values, measured))
      config = change(config)
    return config, applied

  def _presets(
    self, config: C, agent: str, kind: str
  ) -> Iterator[tuple[str, bool, Callable[[C], C]]]:
    """Yields each preset's name, whether it is measured, and the preset."""
    if kind not in self.kinds:
      raise types.ConfigError(
        f"expected presets {', '.join(self.kinds)}, found {kind!r}"
      )
    kinds = [kind]
    if kind == "auto":
      kinds = presets.kinds(config.env, self.images, self.continuous)
    for kind in kinds:
      preset = self._by_kind.get(kind)
      if preset is None:
        continue
      name = preset.purpose(kind)
      # Small tasks have been measured with every agent, others only with the
      # default one.
      is_default = preset is presets.SMALL or agent == self.default_agent
      measured = preset.measured and is_default
      yield name, measured, presets.with_agents(preset, name)
    # A function that is not a `Preset` counts as measured.
    if self.recurrent and getattr(config.agent, "recurrent", False):
      measured = getattr(self.recurrent, "measured", True)
      yield "a memory", measured, self.recurrent
    if change := self.by_agent.get(agent):
      yield agent, getattr(change, "measured", True), change

  def changed(self, agent: str = "") -> list[str]:
    """Returns the settings that presets change, most frequent first.

    Changes by `images` and `continuous` count twice, other changes once.
    """
    config = self.with_agent(agent)
    values = {
      applied.name: applied.values
      for kind in self.kinds[1:]  # `auto` selects one of the others.
      for applied in self.with_presets(config, agent, kind)[1]
    }
    own_presets = [x.values for x in self._by_kind.values()]
    counts = collections.Counter(
      name for names in (*values.values(), *own_presets) for name in names
    )
    return [name for name, _ in counts.most_common()]

  @property
  def kinds(self) -> tuple[str, ...]:
    """The values of `--presets`."""
    return ("auto", "none", *self._by_kind)

  @property
  def _by_kind(self) -> Mapping[str, presets.Preset]:
    """The presets for kinds of environments."""
    agents: Sequence[Any] = [self.config.agent, *self.agents.values()]
    has_small = any(
      hasattr(agent, "for_small") and agent.for_small() != agent
      for agent in agents
    )
    small = presets.SMALL if has_small else None
    by_kind = dict(small=small, images=self.images, continuous=self.continuous)
    return {kind: x for kind, x in by_kind.items() if x is not None}

  @property
  def default_agent(self) -> str:
    """The name of the default agent; empty if `agents` lacks it."""
    default = self.config.agent
    return next((k for k, v in self.agents.items() if v == default), "")


def name_of(module: str) -> str:
  """Returns the name of a module's experiment, as in `config.json`.

  The name is short, such as `ppo`, for an experiment that comes with seedx, and
  `MODULE:EXPERIMENT` for any other. The module may be `__main__`.
  """
  name = program_module(module)
  short = name.rpartition(".")[2]
  path = getattr(sys.modules.get(module), "__file__", None) or ""
  if _shipped().get(short) == pathlib.Path(path).resolve():
    return short
  return f"{name}:{_ATTRIBUTE}"


def program_module(module: str) -> str:
  """Returns the name under which a module, or `__main__`, is imported."""
  if module != "__main__":
    return module
  main = sys.modules["__main__"]
  if main.__spec__ is not None:
    return main.__spec__.name
  return pathlib.Path(main.__file__ or "").stem


def shipped() -> list[str]:
  """Returns the short names of the experiments that come with seedx."""
  return sorted(_shipped())


def check_name(name: str) -> None:
  """Raises types.ConfigError for a name that `load_module` would not accept."""
  if name in _shipped() or name.endswith((".py", f":{_ATTRIBUTE}")):
    return
  raise types.ConfigError(
    f"expected one of {', '.join(shipped())}, or your own as FILE.py or"
    f" MODULE:{_ATTRIBUTE}, found {name!r}"
  )


def summaries() -> dict[str, str]:
  """Reads the first docstring line of each shipped experiment; imports none."""
  texts = {name: _shipped()[name].read_text("utf-8") for name in shipped()}
  docs = {x: ast.get_docstring(ast.parse(text)) for x, text in texts.items()}
  return {name: (doc or "").partition("\n")[0] for name, doc in docs.items()}


def load(name: str) -> Experiment[Any]:
  """Returns the experiment with a name from `name_of`.

  Raises:
    types.ConfigError: it cannot be imported.
  """
  return getattr(load_module(name), _ATTRIBUTE)


def load_module(name: str) -> python_types.ModuleType:
  """Returns the module whose `EXPERIMENT` is the experiment of this name.

  The name may also be that of the module's file, FILE.py.

  Raises:
    types.ConfigError: it cannot be imported.
  """
  try:
    if name in _shipped():
      module = _import_shipped(name)
    else:
      folder, path = pathlib.Path.cwd(), pathlib.Path(name)
      if path.suffix == ".py":
        folder, name = path.absolute().parent, path.stem
      if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
      module = importlib.import_module(name.partition(":")[0])
    if not isinstance(getattr(module, _ATTRIBUTE), Experiment):
      raise TypeError(f"its {_ATTRIBUTE} is not an app.Experiment")
  except (AttributeError, ImportError, TypeError, ValueError) as error:
    raise types.ConfigError(
      f"expected {name} to be one of {', '.join(shipped())}, or to be a module"
      f" with an {_ATTRIBUTE} that can be imported from here: {error}"
    ) from error
  return module


def _shipped() -> dict[str, pathlib.Path]:
  """Returns the files of the experiments that come with seedx, by short name.

  An installed seedx contains the files; in the repository, they are beside it.
  """
  package = pathlib.Path(seedx.__file__).resolve().parent
  for folder in (package / "experiments", package.parent / "experiments"):
    if folder.is_dir():
      return {path.stem: path for path in folder.glob("[!_]*.py")}
  return {}


def _import_shipped(short: str) -> python_types.ModuleType:
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
