"""Tables of settings and presets for the pages, made from the configs.

The module is a Sphinx extension with three directives. They show the settings
of an agent, the presets of experiments, and names in other libraries:

    ```{settings} seedx.agents.ppo
    ```

    ```{settings} seedx.agents.ddpg:td3
    ```

    ```{presets} ppo, impala --agent ppo
    ```

    ```{synonyms}
    ```

The text in a directive is for readers of the page's file, such as on GitHub;
the site shows the table instead.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from seedx import types
from seedx.app.settings import configs, experiments, presets, synonyms, wording

if TYPE_CHECKING:  # The tables themselves need no Sphinx.
  from sphinx import application

# The occasions on which a setting may change, in a reader's words.
_CHANGES: Mapping[types.Changes, str] = {
  "never": "no",
  "run_time": "during a run",
  "resume": "at a resume",
  "process": "in each process",
  "start": "at each start",
}


def settings_tables(module: str) -> str:
  """Returns the settings of an agent in Markdown, one table for each class.

  The first table has the settings that the agent adds, the last one those of
  its optimizer. A function of the module may follow a colon: it returns the
  config instead of the class `Config`.

  Raises:
    types.ConfigError: the module has no config of an agent.
  """
  config = _config(module)
  variants = {
    purpose: configs.values(getattr(config, method)())
    for purpose, method in presets.METHODS.items()
    # MuJoCo has the variant for continuous actions.
    if hasattr(config, method) and purpose != "MuJoCo"
  }
  values = configs.values(config)
  tables: dict[type, list[list[str]]] = {}
  for name, setting in configs.settings(config).items():
    others = [
      f"{purpose}: {_shown(variant[name])}"
      for purpose, variant in variants.items()
      if variant[name] != values[name]
    ]
    row = [
      _flags(setting),
      _shown(values[name]),
      ", ".join(others),
      _CHANGES[setting.about.changes],
      _sentence(setting.help),
    ]
    tables.setdefault(_definer(setting), []).append(row)
  header = ["setting", "default", "variants", "may change", "meaning"]
  order = type(config).mro()
  return "\n\n".join(
    f"**{_first_line(owner)}**\n\n{_table(header, tables[owner])}"
    for owner in sorted(tables, key=order.index)
  )


def presets_table(commands: str) -> str:
  """Returns in Markdown what experiments set, for each kind of environment.

  `commands` are experiments, perhaps with an agent, separated by commas: `ppo,
  impala --agent ppo`.

  Raises:
    types.ConfigError: there is no such experiment or agent.
  """
  rows = []
  for command in commands.split(","):
    cell = f"`seedx train {command.strip()}`"
    for purpose, values in _presets(command):
      pairs = [
        f"`{' '.join(wording.option(name, value))}`"
        for name, value in values.items()
      ]
      rows.append([cell, purpose, ", ".join(pairs) or "the defaults"])
      cell = ""
  return _table(["command", "environments", "values"], rows)


def synonyms_table() -> str:
  """Returns in Markdown the names of settings in other libraries."""
  rows = [
    [", ".join(f"`{x}`" for x in names.split()), f"`{wording.flag(name)}`"]
    for name, names in synonyms.NAMES.items()
  ]
  return _table(["there", "here"], rows)


def setup(app: "application.Sphinx") -> dict[str, bool]:
  """Adds the directives to Sphinx, whose build ends at a wrong argument."""
  # The tables need no Sphinx, and neither do their tests.
  from docutils import nodes
  from sphinx import errors
  from sphinx.util import docutils

  def directive(
    make: Callable[..., str], arguments: int = 1
  ) -> type[docutils.SphinxDirective]:
    class Tables(docutils.SphinxDirective):
      required_arguments = arguments
      final_argument_whitespace = True
      has_content = True

      def run(self) -> list[nodes.Node]:
        # A config may have changed since the last build.
        self.env.note_reread()
        try:
          text = make(*self.arguments)
        except types.ConfigError as error:
          raise errors.SphinxError(f"{self.get_location()}: {error}") from error
        return self.parse_text_to_nodes(text)

    return Tables

  app.add_directive("settings", directive(settings_tables))
  app.add_directive("presets", directive(presets_table))
  app.add_directive("synonyms", directive(synonyms_table, arguments=0))
  return {"parallel_read_safe": True}


def _config(module: str) -> Any:
  """Returns the config of an agent's module, or of a function in it."""
  name, _, function = module.partition(":")
  try:
    make = getattr(importlib.import_module(name), function or "Config", None)
  except ImportError as error:
    raise types.ConfigError(
      f"expected the module of an agent, such as seedx.agents.ppo, found"
      f" {module!r}: {error}"
    ) from error
  if not (dataclasses.is_dataclass(make) or inspect.isfunction(make)):
    raise types.ConfigError(
      "expected a module with a Config that has settings, such as"
      f" seedx.agents.ppo, found {module!r} without one"
    )
  return make()


def _presets(command: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields kinds of environments, and the values of settings for each."""
  name, _, agent = command.strip().partition(" --agent ")
  experiment = experiments.load(name)
  config = experiment.with_agent(agent)
  values = configs.values(config)
  yield (
    "all",
    {
      name: values[name]
      for name, setting in configs.settings(config).items()
      if values[name] != setting.default
    },
  )
  for kind in experiment.kinds[1:]:  # `auto` selects one of the others.
    # Other agents than the default one may lack continuous actions.
    if (
      agent
      and kind == "continuous"
      and not hasattr(config.agent, "for_continuous")
    ):
      continue
    before = config
    if kind == "none" and experiment.recurrent:
      before = configs.replaced(config, {"recurrent": True})
    after, applied = experiment.with_presets(before, agent, kind)
    final = configs.values(after)
    for preset in applied:
      # A preset that follows may have other values. The first row has the
      # values of the agent's own preset.
      kept = {k: x for k, x in preset.values.items() if final[k] == x}
      mark = "" if preset.measured else ", not measured"
      if kept and preset.name != (agent or experiment.default_agent):
        yield f"{preset.name}{mark}", kept


def _definer(setting: configs.Setting) -> type:
  """Returns the class that adds a setting to those of its base classes."""
  *_, definer = (
    base
    for base in setting.owner.mro()
    if setting.name in vars(base).get("__annotations__", ())
  )
  return definer


def _flags(setting: configs.Setting) -> str:
  if setting.kind is not bool:
    return f"`{wording.flag(setting.name)}`"
  return ", ".join(
    f"`{word}`"
    for value in (True, False)
    for word in wording.option(setting.name, value)
  )


def _shown(value: object) -> str:
  return wording.shown(value) or "none"


def _sentence(text: str) -> str:
  """Returns the text about a setting as the content of a table's cell."""
  return text[:1].upper() + text[1:].replace("|", r"\|")


def _first_line(owner: type) -> str:
  return (owner.__doc__ or owner.__qualname__).partition("\n")[0]


def _table(header: list[str], rows: list[list[str]]) -> str:
  """Returns a table in Markdown."""
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
