"""Settings as texts: their flags, and their values on a command line."""

import json
from collections.abc import Mapping
from typing import Any


def option(name: str, value: object) -> list[str]:
  """Returns a setting as words of a command line: its flag and value."""
  if isinstance(value, bool):
    return [flag(name) if value else f"--no-{flag(name)[2:]}"]
  return [flag(name), shown(value)]


def shown(value: object) -> str:
  """Returns a value as it is written on a command line."""
  if isinstance(value, Mapping):
    if any("," in key or "=" in key for key in value):
      return json.dumps(value)
    return ",".join(f"{key}={_in_pairs(x)}" for key, x in value.items())
  if isinstance(value, tuple | list):
    return ",".join(map(str, value))
  return str(value)


def flag(name: str) -> str:
  """Returns the flag of a setting."""
  return "--" + name.replace("_", "-")


def keywords(text: str) -> dict[str, Any]:
  """Reads `key=value,key=value`, or a JSON object; values may be JSON."""
  if text.startswith("{"):
    return json.loads(text)
  pairs = {}
  while text := text.lstrip(","):
    key, equals, rest = text.partition("=")
    if not equals or "," in key:
      raise ValueError(text)
    value, text = _first_value(rest)
    pairs[key] = value
  return pairs


def _first_value(text: str) -> tuple[Any, str]:
  """Returns the value at the start of `value,key=value`, and the rest."""
  try:
    value, end = json.JSONDecoder().raw_decode(text)
    if text[end : end + 1] in ("", ","):
      return value, text[end + 1 :]
  except json.JSONDecodeError:
    pass
  word, _, rest = text.partition(",")
  return _json(word), rest


def _json(text: str) -> Any:
  """Reads JSON, `True` or `False`; any other text is a string."""
  try:
    return json.loads(text)
  except json.JSONDecodeError:
    return {"True": True, "False": False}.get(text, text)


def _in_pairs(value: object) -> str:
  """Returns the text that `_first_value` reads as this value."""
  if isinstance(value, str) and _json(value) == value and "," not in value:
    return value
  return json.dumps(value)
