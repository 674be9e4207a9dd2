"""What starts the processes of a run."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from seedx import types

# What Ray takes in another way.
_RAYS_OWN = ("memory", "object_store_memory")


@dataclasses.dataclass(frozen=True)
class Config:
  """What starts the other processes of a run.

  Attributes:
    launcher: "processes" starts them on this machine, "ray" on the machines of
      a Ray cluster.
    ray_address: of the cluster; "auto" for the one that RAY_ADDRESS names or
      that runs on this machine, "local" for a new one of this machine alone,
      which listens on 127.0.0.1 only.
    actor_cpus: CPUs that Ray keeps for each of them.
    actor_resources: what else each of them needs of its machine: `GPU`, or
      resources of your own, such as `{"actors": 1}`, that `ray start
      --resources` gave to it.
    learner_on_cluster: run the learner on a machine of the cluster, too, and on
      another where that dies, from its newest checkpoint; the directory of the
      run has to be on a file system that all of them share.
    learner_resources: what the learner needs of its machine there, such as
      `{"CPU": 4, "GPU": 1}`.
  """

  launcher: Literal["processes", "ray"] = types.setting(
    "processes", changes="start"
  )
  ray_address: str = types.setting("auto", changes="start")
  actor_cpus: float = types.setting(1.0, changes="start", low=0.0)
  actor_resources: Mapping[str, Any] = types.setting({}, changes="start")
  learner_on_cluster: bool = types.setting(False, changes="start")
  learner_resources: Mapping[str, Any] = types.setting({}, changes="start")

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what Ray would not take."""
    types.check_settings(self)
    check_resources("actor_resources", self.actor_resources)
    check_resources("learner_resources", self.learner_resources)
    if self.learner_on_cluster and self.launcher != "ray":
      raise types.ConfigError(
        f"expected launcher ray with learner_on_cluster, found {self.launcher}"
      )


def check_resources(name: str, resources: Mapping[str, Any]) -> None:
  """Raises types.ConfigError for amounts that Ray would not take."""
  for resource, amount in resources.items():
    number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not number or not 0 <= amount <= types.MAX_VALUE:
      raise types.ConfigError(
        f"expected numbers as {name}, found {amount!r} for {resource!r}"
      )
    if resource in _RAYS_OWN:
      raise types.ConfigError(
        f"expected CPU, GPU and resources of your own as {name}, found"
        f" {resource!r}"
      )
    if resource != "CPU" and amount > 1 and amount != round(amount):
      raise types.ConfigError(
        f"expected whole numbers above 1 as {name}, found {amount!r} for"
        f" {resource!r}"
      )
