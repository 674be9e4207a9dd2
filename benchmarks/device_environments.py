"""Measures environments of JAX functions alone, and `anakin` with them.

  python -m benchmarks.device_environments "anakin_ppo --env gymnax:CartPole-v1"

For each command, a row has the env steps/s of its environments alone, with
random actions, and of the training, which acts and learns, too. Each is the
fastest of several calls, which take turns. The last column has the CPU seconds
of each until the end of the first call, most of which compile, unless JAX has
the programs in a cache.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.speed import work
from seedx.envs import functional
from seedx.pipelines import anakin
from seedx.pipelines.anakin import training

_CALLS = 5


def main() -> None:
  """Prints a row for each command."""
  print("| command | env steps/s alone | in anakin | share | CPU s at first |")
  print("|---|---|---|---|---|")
  for words in sys.argv[1:]:
    config = work.config_of(words, "")
    cpu = [time.process_time()]
    alone = _Alone(config)
    alone.call()
    cpu.append(time.process_time())
    trained = training.Training(config)
    trained.call()
    cpu.append(time.process_time())
    seconds = [
      (_seconds(alone.call), _seconds(trained.call)) for _ in range(_CALLS)
    ]
    steps = config.num_envs * config.learner.unroll_length
    one, both = (steps / min(x) for x in zip(*seconds, strict=True))
    print(
      f"| `{words}` | {one:,.0f} | {both:,.0f} | {both / one:.2f}"
      f" | {cpu[1] - cpu[0]:.0f}, {cpu[2] - cpu[1]:.0f} |",
      flush=True,
    )


class _Alone:
  """Environments that take as many steps in a call as in a rollout."""

  def __init__(self, config: anakin.Config) -> None:
    environment, rows = functional.make(config.env), config.num_envs
    keys = functional.keys(config.seed, rows)

    def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
      state, time = carry
      key = jax.random.fold_in(jax.random.key(0), time[0])
      number = environment.action.num_values
      action = jax.random.randint(key, (rows,), 0, number)
      state, timestep = functional.step(environment, state, action, keys, time)
      return (state, time + 1), timestep.reward

    length = config.learner.unroll_length
    self._steps = jax.jit(lambda x: jax.lax.scan(step, x, length=length))
    self._carry = functional.init(environment, keys), jnp.zeros(rows, jnp.int32)

  def call(self) -> None:
    """Takes the steps."""
    self._carry, _ = jax.block_until_ready(self._steps(self._carry))


def _seconds(function: Callable[[], None]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


if __name__ == "__main__":
  main()
