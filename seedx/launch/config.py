"""The config of the launcher of a run's processes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from seedx import types

# Ray takes these as separate arguments, not as resources.
_RAY_ARGUMENTS = ("memory", "object_store_memory")


@dataclasses.dataclass(frozen=True)
class Config:
  """The launcher of the processes of a run, other than the learner.

  Attributes:
    launcher: "processes" to start them on this machine, "ray" for the machines
      of a Ray cluster.
    ray_address: address of the cluster; "auto" for the one in RAY_ADDRESS or on
      this machine, "local" for a new one on this machine alone, which listens
      on 127.0.0.1 only.
    actor_resources: resources that Ray reserves for each process beside one
      `CPU`: another number of them, `GPU`, or your own, such as
      `{"actors": 1}`, which `ray start --resources` gives to a machine.
    learner_on_cluster: whether the learner also runs on a machine of the
      cluster. If that machine dies, the learner continues on another one from
      its newest checkpoint; all machines must share the run directory.
    learner_resources: resources that Ray reserves for the learner, such as
      `{"CPU": 4, "GPU": 1}`.
  """

  launcher: Literal["processes", "ray"] = types.setting(
    "processes", changes="start"
  )
  ray_address: str = types.setting("auto", changes="start")
  actor_resources: Mapping[str, Any] = types.setting({}, changes="start")
  learner_on_cluster: bool = types.setting(False, changes="start")
  learner_resources: Mapping[str, Any] = types.setting({}, changes="start")

  def __post_init__(self) -> None:
    types.check_settings(self)
    check_resources("actor_resources", self.actor_resources)
    check_resources("learner_resources", self.learner_resources)
    if self.learner_on_cluster and self.launcher != "ray":
      raise types.ConfigError(
        f"expected launcher ray with learner_on_cluster, found {self.launcher}"
      )


def check_resources(name: str, resources: Mapping[str, Any]) -> None:
  """Raises types.ConfigError for amounts that Ray would refuse."""
  for resource, amount in resources.items():
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not 0 <= amount <= types.MAX_VALUE:
      raise types.ConfigError(
        f"expected numbers as {name}, found {amount!r} for {resource!r}"
      )
    if resource in _RAY_ARGUMENTS:
      raise types.ConfigError(
        f"expected CPU, GPU and resources of your own as {name}, found"
        f" {resource!r}"
      )
    if resource != "CPU" and amount > 1 and amount != round(amount):
      raise types.ConfigError(
        f"expected whole numbers, or amounts up to 1, as {name}, found"
        f" {amount!r} for {resource!r}"
      )
