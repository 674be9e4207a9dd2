"""What a run cannot do without: environments, acting, learning, each alone.

Each is measured in a process of its own, with the sizes that the experiment's
config gives it, and without messages, queues, or anything beside it. What all
three cost together, in CPU seconds per env step, bounds the env steps per
second that a run can reach on so many cores.
"""

import concurrent.futures
import dataclasses
import multiprocessing
from collections.abc import Callable
from typing import Any

from seedx.app import devices
from seedx.app.benchmark import alone, matrix_products, work_sizes
from seedx.launch import nodes
from seedx.on_cpu import allocator
from seedx.runtime import process


@dataclasses.dataclass(frozen=True)
class OwnWork:
  """What the work of a run costs by itself.

  Attributes:
    sizes: with which it was measured.
    alone_per_second: env steps per second of the environments alone, with
      random actions.
    environments: CPU seconds per env step to step them.
    acting: CPU seconds per env step to act.
    learning: CPU seconds per env step to learn from it, as often as the
      experiment does.
    products: CPU seconds per env step that the matrix products of learning
      would take at the speed of a large one.
  """

  sizes: work_sizes.Sizes
  alone_per_second: float
  environments: float
  acting: float
  learning: float
  products: float

  @property
  def total(self) -> float:
    """CPU seconds per env step of all of it."""
    return self.environments + self.acting + self.learning

  @property
  def elsewhere(self) -> float:
    """CPU seconds per env step of what other processes than the learner do."""
    return sum(getattr(self, name) for name in self.sizes.elsewhere)

  def bound(self, cores: int) -> float:
    """The most env steps per second that so many cores can do."""
    return cores / self.total


def measure(
  words: str, env: str, seconds: float, say: Callable[[str], None]
) -> OwnWork:
  """Measures the own work of an experiment.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.
    seconds: to measure each part for.
    say: is told what is measured next.

  Raises:
    types.ConfigError: the experiment cannot be run so.
  """

  def apart(part: str, function: Callable[..., Any]) -> Any:
    say(f"{part} alone, {words}")
    return in_process(_measure, part, function, words, env, seconds)

  sizes, (per_second, environments) = apart("environments", alone.environments)
  _, acting = apart("acting", alone.acting)
  _, (learning, updates) = apart("learning", alone.learning)
  _, products = apart("matrix products", matrix_products.of_update)
  parts = environments, acting, learning, products * updates
  return OwnWork(sizes, per_second, *parts)


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
  """Calls a function in a process of its own.

  Args:
    function: of a module.
    *arguments: that can be pickled, as the result can.

  Returns:
    What the function returns.

  Raises:
    BaseException: what the function raises.
  """
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context) as process:
    return process.submit(function, *arguments).result()


def as_with_a_server(function: Callable[..., Any], *arguments: Any) -> Any:
  """Calls a function with the settings of a program that has a server.

  They are of the whole process; see `in_process`.

  Args:
    function: takes the arguments.
    *arguments: of the function.
  """
  devices.compute_on_own_threads()
  return function(*arguments)


def _measure(
  part: str,
  function: Callable[..., Any],
  words: str,
  env: str,
  seconds: float,
) -> tuple[work_sizes.Sizes, Any]:
  config = work_sizes.config_of(words, env)
  sizes = work_sizes.Sizes.of(config)
  # What the programs of a run set before they do this part.
  allocator.keep_freed_memory()
  if isinstance(config, process.ServerConfig):
    devices.compute_on_own_threads()
  if part in sizes.elsewhere:
    nodes.share_cores(sizes.pools)
  return sizes, function(config, sizes, seconds)
