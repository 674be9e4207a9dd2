"""Limits of a run on many hosts, from measured and published rates.

Each pipeline's function returns, for each part of a run, the env steps per
second that this part could carry if nothing else limited the run. The part with
the lowest rate breaks first. docs/scale.md has formulas in words, and sources.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

from benchmarks import watched

# Gigabits per second in bytes per second.
_GBIT = 1e9 / 8
# Env steps per second, by part of a run.
Limits = Mapping[str, float]

ENVIRONMENTS = "environments"
CPU = "learner's CPU"
NETWORK = "learner's network"
DEVICE = "device"
STREAMS = "streams"
EXCHANGES = "all-reduce"
SHARDS = "shards' CPU"
SHARDS_NETWORK = "shards' network"


@dataclasses.dataclass(frozen=True)
class Rates:
  """Published rates of hosts, and rates measured on an accelerator.

  Attributes:
    cores: number of CPU cores of an actor host.
    host_network: bytes per second of an actor host's network.
    learner_network: bytes per second of a learner host's network.
    bus_bytes: bus bandwidth of an all-reduce between hosts, bytes per second.
    exchange_seconds: seconds of a small all-reduce between two hosts.
    act: rows per second of acting alone on an accelerator, in batches of 1,024.
    learn: env steps per second of learning alone on an accelerator.
    on_device: env steps per second of `anakin_ppo`, whose environments, acting
      and learning are on one accelerator.
    max_streams: largest measured number of streams of one learner process.
  """

  # AWS, m5.8xlarge: 32 virtual CPUs and 10 Gb/s.
  cores: int = 32
  host_network: float = 10 * _GBIT
  # Google Cloud, A2 and G2: up to 100 Gb/s.
  learner_network: float = 100 * _GBIT
  # NCCL, for each network card of 400 Gb/s.
  bus_bytes: float = 46e9
  exchange_seconds: float = 47e-6
  # benchmarks/accelerator.md, one H200.
  act: float = 505_724
  learn: float = 498_992
  on_device: float = 70_738_234
  max_streams: int = 1_024


@dataclasses.dataclass(frozen=True)
class Work:
  """The measured work of a pipeline.

  Attributes:
    environment: CPU seconds to step an environment.
    act: CPU seconds of acting per env step, if actors or workers act.
    learn: CPU seconds of learning per env step, if workers learn.
    message: CPU seconds of the learner's process for a message.
    message_steps: env steps of a message.
    step_bytes: bytes per env step on the wire to the learner.
    fetch: CPU seconds of the learner's process to send all parameters.
    fetch_steps: env steps of an actor between two fetches.
    parameters: number of parameters.
    batch_steps: env steps of one update on each learner host.
    times_learned: number of times that an env step is learned from.
    push: CPU seconds of a parameter server for a gradient, if one shard has all
      parameters.
    push_alone: the part of `push` that does not shrink with the shard.
    gradient_steps: env steps of a worker between two gradients.
    optimizer_steps: number of optimizer steps of an update.
  """

  environment: float
  act: float = 0.0
  learn: float = 0.0
  message: float = 0.0
  message_steps: float = 1.0
  step_bytes: float = 0.0
  fetch: float = 0.0
  fetch_steps: float = math.inf
  parameters: int = 0
  batch_steps: int = 1
  times_learned: float = 1.0
  push: float = 0.0
  push_alone: float = 0.0
  gradient_steps: float = 1.0
  optimizer_steps: int = 1


def all_reduce_seconds(
  rates: Rates, hosts: int, num_bytes: float, exchanges: int = 1
) -> float:
  """Returns the seconds in which hosts exchange gradients in one update.

      exchanges * exchange_seconds * log2(hosts)
        + 2 (hosts - 1) / hosts * num_bytes / bus_bytes

  The second term follows from NCCL's definition of the bus bandwidth. The first
  assumes a tree of hosts, each level of which takes as long as two hosts.
  """
  latency = exchanges * rates.exchange_seconds * math.log2(hosts)
  return latency + 2 * (hosts - 1) / hosts * num_bytes / rates.bus_bytes


def seed(work: Work, rates: Rates, hosts: int) -> Limits:
  """Returns the limits of SEED with one learner host."""
  return _environments(work, rates, hosts) | {
    CPU: work.message_steps / work.message,
    NETWORK: rates.learner_network / work.step_bytes,
    DEVICE: _of_device(rates),
    STREAMS: rates.max_streams / work.environment,
  }


def seed_together(work: Work, rates: Rates, hosts: int) -> Limits:
  """Returns the limits of SEED with as many learner hosts as the actors need.

  `hosts` counts actor hosts; `learners` returns the number of learner hosts.
  """
  number = learners(work, rates, hosts)
  limits = {k: number * x for k, x in seed(work, rates, hosts).items()}
  limits |= _environments(work, rates, hosts)
  update_seconds = work.batch_steps / _of_device(rates)
  exchange_seconds = all_reduce_seconds(
    rates, number, 4 * work.parameters, _VTRACE_EXCHANGES
  )
  seconds = update_seconds + exchange_seconds
  name = DEVICE if update_seconds > exchange_seconds else EXCHANGES
  limits.pop(DEVICE)
  return limits | {name: number * work.batch_steps / seconds}


def learners(work: Work, rates: Rates, hosts: int) -> int:
  """Returns the number of learner hosts that SEED's actor hosts need."""
  limits = dict(seed(work, rates, hosts))
  demand = limits.pop(ENVIRONMENTS)
  return max(1, math.ceil(demand / min(limits.values())))


def impala(work: Work, rates: Rates, hosts: int) -> Limits:
  """Returns the limits of IMPALA and Ape-X with one learner host."""
  cpu = work.message / work.message_steps + work.fetch / work.fetch_steps
  fetched_bytes = 4 * work.parameters / work.fetch_steps
  return _environments(work, rates, hosts) | {
    CPU: 1 / cpu,
    NETWORK: rates.learner_network / max(work.step_bytes, fetched_bytes),
    DEVICE: rates.learn / work.times_learned,
    STREAMS: rates.max_streams / (work.environment + work.act),
  }


def gorila(work: Work, rates: Rates, hosts: int, shards: int) -> Limits:
  """Returns the limits of Gorila with parameter servers on hosts of their own.

  Gradients and parameters have the same size and move in opposite directions.
  """
  moved = work.push - work.push_alone
  push_seconds = work.push_alone + moved / shards
  part_bytes = 4 * work.parameters / shards
  return _environments(work, rates, hosts) | {
    SHARDS: work.gradient_steps / push_seconds,
    SHARDS_NETWORK: rates.host_network / part_bytes * work.gradient_steps,
  }


def sync(work: Work, rates: Rates, hosts: int) -> Limits:
  """Returns the limits of `sync`, whose hosts have a device and environments.

  A host steps its environments, and then all hosts learn together.
  """
  exchange_seconds = _of_ppo(work, rates, hosts)
  stepping_seconds = work.batch_steps * work.environment / rates.cores
  device_seconds = work.batch_steps * (
    1 / rates.act + work.times_learned / rates.learn
  )
  longer = ENVIRONMENTS if stepping_seconds > device_seconds else DEVICE
  alone_seconds = stepping_seconds + device_seconds
  return _in_turn(work, hosts, alone_seconds, exchange_seconds, longer)


def anakin(work: Work, rates: Rates, hosts: int) -> Limits:
  """Returns the limits of `anakin`, which has one accelerator in each host."""
  exchange_seconds = _of_ppo(work, rates, hosts)
  alone_seconds = work.batch_steps / rates.on_device
  return _in_turn(work, hosts, alone_seconds, exchange_seconds, DEVICE)


def first(limits: Limits) -> tuple[str, float]:
  """Returns the part that breaks first, and its env steps per second."""
  return min(limits.items(), key=lambda item: item[1])


def table(
  pipelines: Mapping[str, Callable[[int], Limits]], numbers: tuple[int, ...]
) -> str:
  """Returns a Markdown table: pipelines' lowest limits, by number of hosts."""
  rows = []
  for name, limits in pipelines.items():
    cells = [name]
    for number in numbers:
      part, rate = first(limits(number))
      cells.append(f"{short(rate)}, {part}")
    rows.append(cells)
  return watched.table(["hosts", *(f"{x:,}" for x in numbers)], rows)


def short(rate: float) -> str:
  """Returns a rate with three digits, such as 12.3k."""
  for divisor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
    if rate >= 0.9995 * divisor:
      return f"{rate / divisor:.3g}{unit}"
  return f"{rate:.3g}"


# Exchanges between hosts in one optimizer step, see docs/machines.md.
_VTRACE_EXCHANGES = 6
_PPO_EXCHANGES = 5


def _of_ppo(work: Work, rates: Rates, hosts: int) -> float:
  """Returns the seconds in which hosts exchange gradients in a PPO update."""
  num_bytes = 4 * work.parameters * work.optimizer_steps
  exchanges = _PPO_EXCHANGES * work.optimizer_steps
  return all_reduce_seconds(rates, hosts, num_bytes, exchanges)


def _of_device(rates: Rates) -> float:
  """Returns the env steps per second of a device that acts and learns."""
  return 1 / (1 / rates.act + 1 / rates.learn)


def _environments(work: Work, rates: Rates, hosts: int) -> dict[str, float]:
  seconds = work.environment + work.act + work.learn
  return {ENVIRONMENTS: hosts * rates.cores / seconds}


def _in_turn(
  work: Work, hosts: int, alone: float, exchanges: float, name: str
) -> Limits:
  """Returns the limit of hosts that first compute, then exchange gradients."""
  rate = hosts * work.batch_steps / (alone + exchanges)
  return {name if alone >= exchanges else EXCHANGES: rate}
