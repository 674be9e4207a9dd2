"""The numbers in an episode's last `info` that are logged as metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.processes import single


class LastInfo:
  """Reader of the config's `log_info` at the ends of episodes."""

  def __init__(self, config: env_config.Config) -> None:
    self._name, self._keys = config.env, tuple(config.log_info)
    self._has_ended = False

  def read(self, info: Mapping[str, Any]) -> list[float]:
    """Returns the entries of an episode's last `info`; NaN for None.

    An entry that the first episode had may be missing from later ones, and is
    NaN then: a run must not end after hours because of a metric.

    Raises:
      types.ConfigError: the first episode's `info` lacks an entry, or an entry
        is not a finite number or NaN.
    """
    values = [self._value(key, info) for key in self._keys]
    self._has_ended = True
    return values

  def _value(self, key: str, info: Mapping[str, Any]) -> float:
    try:
      value = _entry(info, key)
    except KeyError:
      if self._has_ended:
        return np.nan
      raise types.ConfigError(
        f"{self._name}: the last info of an episode has no entry {key!r} for"
        f" --log-info. {env_config.suggestion(key, _numbers(info))} Let the"
        " environment set it at the end of each episode, to NaN where an"
        " episode should not count"
      ) from None
    if value is None:
      return np.nan
    try:
      number = single.number(f"the entry {key!r} of info", value)
    except single.WrongStepError as error:
      raise types.ConfigError(f"{self._name}: {error} (--log-info)") from None
    if abs(number) > types.MAX_VALUE:
      raise types.ConfigError(
        f"{self._name}: expected a finite number or NaN as the entry {key!r} of"
        f" info, found {number} (--log-info)"
      )
    return number


def _entry(info: Mapping[str, Any], key: str) -> Any:
  """Returns `info[key]`, or for `a/b` an entry of a dict in `info`."""
  if key in info:
    return info[key]
  parent, slash, child = key.partition("/")
  if slash and isinstance(info.get(parent), Mapping):
    return _entry(info[parent], child)
  raise KeyError(key)


def _numbers(info: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
  for key, value in info.items():
    if isinstance(value, Mapping):
      yield from _numbers(value, f"{prefix}{key}/")
    elif np.ndim(value) == 0 and not isinstance(value, str | bytes):
      yield f"{prefix}{key}"
