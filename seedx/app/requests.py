"""All settings of an experiment's command line."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from seedx import types
from seedx.app import directory
from seedx.app.settings import experiments
from seedx.launch import joining, topology
from seedx.runtime import process


@dataclasses.dataclass(frozen=True)
class Request:
  """All settings of an experiment's command line.

  Attributes:
    chosen: the presets; and the agent, if there is a choice.
    run: config of the pipeline.
    files: the run's directory, and how often the run is saved and evaluated.
    process: the role of this process, if there are several.
  """

  chosen: Any
  run: process.Config
  files: directory.Config = directory.Config()
  process: Any = None


def of(experiment: experiments.Experiment[Any], agent: str = "") -> Request:
  """Returns all settings of an experiment's command line, without presets.

  Raises:
    types.ConfigError: there is no such agent.
  """
  config, process = experiment.with_agent(agent), None
  sentence = "presets to apply; auto selects those for the environment."
  auto = types.setting("auto", labels=False)
  chosen = _choice("presets", sentence, auto, experiment.kinds)
  if experiment.agents:
    names = tuple(experiment.agents)
    name = agent or experiment.default_agent
    chosen = _choice("agent", "name of the agent.", name, names, type(chosen))
  # All servers have one role; `--server` selects among them.
  nodes = config.with_sockets("nowhere").nodes()
  if roles := dict.fromkeys(topology.kind(node.role) for node in nodes):
    sentence = "role of this process; 'all' also starts the other processes."
    names = ("all", "learner", *roles)
    default = types.setting("all", changes="process", labels=False)
    process = _choice("role", sentence, default, names, joining.Config)
  return Request(chosen, config, process=process)


def _choice(
  name: str, sentence: str, default: str, names: Sequence[str], *bases: type
) -> Any:
  kind = dataclasses.make_dataclass(
    name.capitalize(),
    [(name, Literal[names], default)],
    bases=bases,
    frozen=True,
  )
  kind.__doc__ = f"A choice.\n\nAttributes:\n  {name}: {sentence}\n"
  return kind()
