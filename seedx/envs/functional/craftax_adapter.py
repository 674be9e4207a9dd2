"""Environments of Craftax (extra `craftax`).

Matthews et al. 2024, "Craftax: A Lightning-Fast Benchmark for Open-Ended
Reinforcement Learning", https://arxiv.org/abs/2402.16801.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from craftax import craftax_env

from seedx.envs import config as env_config
from seedx.envs.functional import libraries

NAMES: Sequence[str] = (
  "Craftax-Symbolic-v1",
  "Craftax-Pixels-v1",
  "Craftax-Classic-Symbolic-v1",
  "Craftax-Classic-Pixels-v1",
)
# No episode reaches this number of actions.
_NEVER = 2**30


class Adapter(libraries.LibraryEnvironment):
  """An environment of Craftax, which has gymnax's functions.

  Args:
    name: one of `NAMES`.
    options: fields of Craftax's `EnvParams`.

  Raises:
    types.ConfigError: an option is unknown.
  """

  slow_reset = True

  def __init__(self, name: str, options: Mapping[str, Any]) -> None:
    env = craftax_env.make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params
    kinds = {
      x.name: type(getattr(params, x.name)) for x in dataclasses.fields(params)
    }
    params = params.replace(**env_config.checked_options(options, kinds))
    # Craftax's own time limit would be a termination.
    limit, params = params.max_timesteps, params.replace(max_timesteps=_NEVER)
    super().__init__(env, params, limit)
