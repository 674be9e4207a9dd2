"""Environments of gymnax (extra `gymnax`).

Lange 2022, https://github.com/RobertTLange/gymnax.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnax

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.functional import libraries

NAMES: Sequence[str] = gymnax.registered_envs


class Adapter(libraries.LibraryEnvironment):
  """An environment of gymnax.

  Args:
    name: one of `NAMES`.
    options: fields of gymnax's `EnvParams`, and arguments of the environment's
      class.

  Raises:
    types.ConfigError: an option is unknown, or gymnax is too old.
  """

  def __init__(self, name: str, options: Mapping[str, Any]) -> None:
    env, params = gymnax.make(name)
    if not hasattr(env, "is_truncated"):
      raise types.ConfigError(
        "expected a gymnax that reports time limits apart, found an older one;"
        " install it with pip install 'seedx[gymnax]'"
      )
    arguments = libraries.kinds(type(env))
    fields = {
      x.name: type(getattr(params, x.name)) for x in dataclasses.fields(params)
    }
    options = env_config.checked_options(options, arguments | fields)
    env, params = gymnax.make(
      name, **{x: value for x, value in options.items() if x in arguments}
    )
    params = params.replace(
      **{x: value for x, value in options.items() if x in fields}
    )
    super().__init__(env, params, int(params.max_steps_in_episode))
