"""Measures a replay of seedx or of another library, in CPU time.

  python -m benchmarks.peers.replays seedx --kind prioritized --steps 65536

The program fills a replay of CartPole. Then it repeatedly adds 512 env steps,
samples 512 and, if the replay is prioritized, writes 512 priorities. It prints
a line of JSON: medians of the CPU microseconds of the whole process.

seedx adds unrolls and samples windows, as its learners do; the others add and
sample transitions. The program imports only the library that it measures.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

BATCH = 512
KINDS = ("prioritized", "uniform")
_PRIORITY_EXPONENT, _WEIGHT_EXPONENT = 0.6, 0.4
_WARM_CALLS, _MINIMUM_CALLS = 10, 30


class Memory(NamedTuple):
  """A replay to measure; each function returns when its work is done.

  Attributes:
    prepared: function that makes the experience to add; it is not measured.
    add: function that adds this experience.
    sample: function that samples a batch.
    update: function that writes new priorities of a sampled batch; None if the
      replay is uniform.
  """

  prepared: Callable[[], Any]
  add: Callable[[Any], None]
  sample: Callable[[], Any]
  update: Callable[[Any], None] | None


def main(argv: Sequence[str] | None = None) -> int:
  """Measures one replay, and prints a line of JSON."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("library", choices=_LIBRARIES)
  parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
  parser.add_argument("--steps", type=int, default=2**16, help="the capacity")
  parser.add_argument("--seconds", type=float, default=3.0)
  options = parser.parse_args(argv)
  is_prioritized = options.kind == KINDS[0]
  memory = _LIBRARIES[options.library](options.steps, is_prioritized)
  seconds = measure(memory, options.steps // BATCH, options.seconds)
  micros = {name: round(1e6 * x, 1) for name, x in seconds.items()}
  print(json.dumps(micros), flush=True)
  return 0


def measure(
  memory: Memory,
  fill: int,
  seconds: float,
  clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
  """Returns the median seconds of each function, and the sum of the medians.

  Args:
    memory: the replay.
    fill: number of calls of `add` that fill the replay.
    seconds: seconds to measure.
    clock: function that returns seconds; by default, the process's CPU time.
  """
  for _ in range(fill):
    memory.add(memory.prepared())
  times: dict[str, list[float]] = {"add": [], "sample": [], "update": []}
  end_seconds = time.monotonic() + seconds
  for call in itertools.count():
    if call > _MINIMUM_CALLS and time.monotonic() > end_seconds:
      break
    new = memory.prepared()
    marks = [clock()]
    memory.add(new)
    marks.append(clock())
    sampled = memory.sample()
    marks.append(clock())
    if memory.update:
      memory.update(sampled)
    marks.append(clock())
    if call >= _WARM_CALLS:  # The first calls compile.
      for each, (start, end) in zip(
        times.values(), itertools.pairwise(marks), strict=True
      ):
        each.append(end - start)
  if not memory.update:
    del times["update"]
  medians = {name: statistics.median(each) for name, each in times.items()}
  return {**medians, "all": sum(medians.values())}


def of_seedx(steps: int, is_prioritized: bool) -> Memory:
  """Returns seedx's replay with the settings of `apex_dqn` or `dqn`."""
  import jax

  from benchmarks.speed import work
  from seedx import envs, replay
  from seedx.acting import local_actor, unroll_store
  from seedx.app import devices
  from seedx.on_cpu import random_keys

  devices.compute_on_own_threads()
  name = "apex_dqn" if is_prioritized else "dqn"
  config = work.config_of(name, "CartPole-v1")
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec)
  period, window = config.learner.unroll_length, agent.needs.window
  assert window is not None
  layout = unroll_store.Layout.of(agent, period, BATCH // period)
  shapes = local_actor.Programs(agent, spec, layout).share()
  share = jax.device_put(work.made_up(shapes))
  kind = replay.Prioritized if is_prioritized else replay.Uniform
  memory: Any = kind(steps // period, window, period)
  state, number = memory.init(share), itertools.count()
  add = jax.jit(memory.add, donate_argnums=0)
  sample = jax.jit(memory.sample, static_argnums=2)
  # `replay_source.CoreReplay` also samples with keys of this kind.
  key = random_keys.unrolled(jax.random.key(0))
  keys = itertools.cycle([*jax.random.split(key)])

  def added(new: Any) -> None:
    nonlocal state
    state = jax.block_until_ready(add(state, new))

  def updated(sampled: Any) -> None:
    nonlocal state
    state = jax.block_until_ready(update(state, sampled[1], priorities))

  if is_prioritized:
    update = jax.jit(memory.update, donate_argnums=0)
    priorities = jax.random.uniform(jax.random.key(1), (BATCH,))
  return Memory(
    prepared=lambda: work.continued(share, next(number)),
    add=added,
    sample=lambda: jax.block_until_ready(sample(state, next(keys), BATCH)),
    update=updated if is_prioritized else None,
  )


def of_flashbax(steps: int, is_prioritized: bool) -> Memory:
  """Returns Flashbax's flat buffer, which keeps transitions on the device."""
  import flashbax
  import jax

  settings: dict[str, Any] = {
    "max_length": steps,
    "min_length": BATCH,
    "sample_batch_size": BATCH,
    "add_sequences": True,
  }
  if is_prioritized:
    buffer = flashbax.make_prioritised_flat_buffer(
      **settings, priority_exponent=_PRIORITY_EXPONENT, device="cpu"
    )
  else:
    buffer = flashbax.make_flat_buffer(**settings)
  new = jax.device_put(_transitions())
  state = buffer.init(jax.tree.map(lambda leaf: leaf[0], new))
  add = jax.jit(buffer.add, donate_argnums=0)
  sample = jax.jit(buffer.sample)
  keys = itertools.cycle([*jax.random.split(jax.random.key(0), 64)])

  def added(new: Any) -> None:
    nonlocal state
    state = jax.block_until_ready(add(state, new))

  def updated(sampled: Any) -> None:
    nonlocal state
    state = update(state, sampled.indices, priorities)
    jax.block_until_ready(state)

  if is_prioritized:
    update = jax.jit(buffer.set_priorities, donate_argnums=0)
    priorities = jax.random.uniform(jax.random.key(1), (BATCH,))
  return Memory(
    prepared=lambda: new,
    add=added,
    sample=lambda: jax.block_until_ready(sample(state, next(keys))),
    update=updated if is_prioritized else None,
  )


def of_cpprb(steps: int, is_prioritized: bool) -> Memory:
  """Returns cpprb's buffer, written in C++, which keeps transitions."""
  import cpprb

  new = _transitions()
  new["next_observation"] = new["observation"]
  shapes = {
    k: {"shape": x.shape[1:] or 1, "dtype": x.dtype} for k, x in new.items()
  }
  priorities = np.random.default_rng(1).uniform(0.1, 1.0, BATCH)
  if not is_prioritized:
    uniform = cpprb.ReplayBuffer(steps, shapes)
    return Memory(
      prepared=lambda: new,
      add=lambda new: uniform.add(**new),
      sample=lambda: uniform.sample(BATCH),
      update=None,
    )
  memory = cpprb.PrioritizedReplayBuffer(
    steps, shapes, alpha=_PRIORITY_EXPONENT
  )
  return Memory(
    prepared=lambda: new,
    add=lambda new: memory.add(**new),
    sample=lambda: memory.sample(BATCH, beta=_WEIGHT_EXPONENT),
    update=lambda x: memory.update_priorities(x["indexes"], priorities),
  )


def _transitions() -> dict[str, np.ndarray]:
  """Returns a batch of transitions of CartPole, without next observations."""
  random = np.random.default_rng(0)
  return {
    "observation": random.normal(size=(BATCH, 4)).astype(np.float32),
    "action": random.integers(0, 2, BATCH).astype(np.int32),
    "reward": np.ones(BATCH, np.float32),
    "discount": np.ones(BATCH, np.float32),
  }


_LIBRARIES = {"seedx": of_seedx, "flashbax": of_flashbax, "cpprb": of_cpprb}

if __name__ == "__main__":
  sys.exit(main())
