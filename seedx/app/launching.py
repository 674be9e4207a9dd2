"""The other processes of a run: started here or on a cluster."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from seedx import envs, wire
from seedx.app import scratch
from seedx.app.runs import records
from seedx.app.settings import configs
from seedx.launch import admission, instances, ray_cluster, topology
from seedx.runtime import hangs, process


@contextlib.contextmanager
def sockets(
  config: process.Config, others_join: bool, watch: hangs.Watch
) -> Iterator[str]:
  """Yields a new directory for sockets; "" if no process is to be started."""
  if others_join or not isinstance(config, process.ServerConfig):
    yield ""
    return
  folder = scratch.folder_for_sockets("seedx-")
  watch.leaving.append(folder.cleanup)
  with folder as path:
    yield path


def launched(
  config: Any, record: records.Record, sockets: str
) -> tuple[Any, list[topology.Node], instances.Instances]:
  """Starts the other processes, unless `sockets` is "".

  Returns:
    The config with the learner's addresses; the nodes; and the processes.
  """
  if not sockets:
    return config, config.nodes(), instances.Processes([])
  if config.launching.launcher == "processes":
    config = config.with_sockets(sockets)
    address = wire.reachable_address(config.address)
    # Raises before anything is started.
    config.security.of_client(address)
    nodes = dataclasses.replace(config, address=address).nodes()
    return config, nodes, instances.Processes(nodes, sockets)
  cluster = ray_cluster.Cluster(config.launching)
  try:
    address = config.address or cluster.free_address()
    config = dataclasses.replace(config, address=address)
    # Raises before anything is started on other machines.
    config.security.of_server(address)
    reached = cluster.reached(address)
    nodes = dataclasses.replace(config, address=reached).nodes()
    code = envs.code_in(_shared_options(config, record))
    placed = ray_cluster.on_cluster(nodes, reached, config.security, code)
    tasks = ray_cluster.Tasks(
      placed, config.launching, cluster, reached, config.security
    )
    return config, nodes, tasks
  except BaseException:
    cluster.leave()
    raise


def bind(
  trainer: process.Process,
  config: process.Config,
  record: records.Record,
  nodes: Sequence[topology.Node],
) -> None:
  """Lets the trainer's server, if it has one, admit processes that join."""
  if trainer.server is None:
    return
  options, name = _shared_options(config, record), record.experiment or ""
  roles = admission.Roles(nodes, name, options, trainer.addresses)
  roles.bind(trainer.server)


def _shared_options(
  config: process.Config, record: records.Record
) -> dict[str, Any]:
  """Returns the recorded settings of the pipeline, which processes share."""
  names = {*configs.settings(config), "agent"}
  return {k: v for k, v in record.options.items() if k in names}
