"""Roles of an experiment, played in a process that has joined its run."""

import dataclasses
import threading

from seedx import types, wire
from seedx.app import compiled, devices
from seedx.app.settings import configs, experiments, opponents
from seedx.launch import joining, topology
from seedx.on_cpu import allocator
from seedx.runtime import process


def experiment_of(
  welcome: joining.Welcome, address: str
) -> experiments.Experiment[process.Config]:
  """Returns the experiment that a learner runs, if it comes with seedx.

  Raises:
    types.ConfigError: the experiment does not come with seedx.
  """
  if welcome.experiment not in experiments.shipped():
    script = welcome.experiment.partition(":")[0].replace(".", "/") or "SCRIPT"
    raise types.ConfigError(
      "expected a learner whose experiment comes with seedx, found"
      f" {welcome.experiment or 'a script'}; copy its code here and run `python"
      f" {script}.py --role {topology.kind(welcome.role)} --address {address}`"
    )
  return experiments.load(welcome.experiment)


def play(
  experiment: experiments.Experiment[process.Config],
  welcome: joining.Welcome,
  address: str,
  listen: str,
  stop: threading.Event,
  security: wire.Security,
) -> None:
  """Plays a role until its work is done.

  Args:
    experiment: the experiment that the learner runs.
    welcome: the learner's welcome.
    address: address of the learner.
    listen: address at which this process listens; empty if its role does not.
    stop: event that ends the work.
    security: certificates and token of the run's processes.

  Raises:
    types.ConfigError: this program has other options than the learner.
    wire.WireError: the learner refuses this process.
  """
  devices.compute_on_own_threads()
  devices.check()
  allocator.keep_freed_memory()
  compiled.keep()
  options = dict(welcome.options)
  config = experiment.with_agent(str(options.pop("agent", "")))
  other = {*configs.recorded(config)} ^ {*options}
  if other:
    raise types.ConfigError(
      "expected a learner with the options that this program has, found a"
      f" difference in {', '.join(sorted(other))}"
    )
  config = configs.replaced(config, options)
  env = opponents.resolved(config.env)
  assert isinstance(config, process.ServerConfig)
  config = dataclasses.replace(
    config, env=env, address=address, security=security
  )
  node = next(node for node in config.nodes() if node.role == welcome.role)
  work = node.config
  node.run(dataclasses.replace(work, address=listen) if listen else work, stop)
