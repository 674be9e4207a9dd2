"""A nested config as flat settings.

A config is a frozen dataclass; some of its fields may be configs themselves.
Settings are the fields, at any depth, whose values a command line and JSON can
express. Names of settings are unique. Other fields (a config that is None, a
Flax module, `init=False`) can only be set in Python.
"""

import dataclasses
import functools
import inspect
import operator
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from seedx import types

C = TypeVar("C")

_PLAIN = (bool, int, float, str, dict[str, Any], Mapping[str, Any])
# Types of sequences, and of their items.
_ITEMS: Mapping[object, type[int] | type[str]] = {
  tuple[int, ...]: int,
  Sequence[int]: int,
  tuple[str, ...]: str,
  Sequence[str]: str,
}


@dataclasses.dataclass(frozen=True)
class Setting:
  """A field of a config, or of a config inside it.

  Attributes:
    name: name of the field.
    path: attributes that lead to the field, the field itself last.
    owner: class of the config that has the field.
    kind: type hint of the field.
    default: default in that class; `dataclasses.MISSING` if there is none.
    about: see `types.setting`.
    help: sentence in `Attributes:` of the class, or of its nearest base class
      with such a sentence.
  """

  name: str
  path: tuple[str, ...]
  owner: type
  kind: Any
  default: object
  about: types.About
  help: str

  @property
  def recorded(self) -> bool:
    """Whether `config.json` has the setting."""
    return self.about.changes != "start"

  @property
  def restored(self) -> bool:
    """Whether a resumed run takes the value from `config.json`."""
    return self.about.changes not in ("start", "process")

  @property
  def resumed(self) -> bool:
    """Whether a run may be resumed with another value."""
    return self.about.changes not in ("never", "run_time")


def choices(kind: object) -> tuple[str, ...]:
  """Returns the values that a `Literal` allows; () for any other type hint."""
  literal = typing.get_origin(kind) is typing.Literal
  return typing.get_args(kind) if literal else ()


def item(kind: object) -> type[int] | type[str] | None:
  """Returns the type of a sequence's items; None for any other type hint."""
  return _ITEMS.get(kind)


def fits(kind: object, value: object) -> bool:
  """Returns whether a value from JSON has the type of a setting."""
  if allowed := choices(kind):
    return isinstance(value, str) and value in allowed
  if item_type := item(kind):
    return isinstance(value, list) and all(type(x) is item_type for x in value)
  if kind is float:
    # Refuses NaN, infinities and integers too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float):
      return False
    return -types.MAX_VALUE <= value <= types.MAX_VALUE
  if kind is int:
    return type(value) is int
  return isinstance(value, kind if isinstance(kind, type) else Mapping)


def settings(config: object) -> dict[str, Setting]:
  """Returns the settings of a config by name, in the order of its fields.

  Raises:
    ValueError: two settings have the same name.
  """
  settings: dict[str, Setting] = {}
  for setting in _settings(config, ()):
    other = settings.setdefault(setting.name, setting)
    if other is not setting:
      owners = [
        f"{x.owner.__module__}.{x.owner.__qualname__}" for x in (other, setting)
      ]
      raise ValueError(
        f"expected one setting named {setting.name}, found one of {owners[0]}"
        f" and one of {owners[1]}"
      )
  return settings


def recorded(config: object) -> dict[str, Setting]:
  """Returns those settings of a config that `config.json` records, by name."""
  return {k: x for k, x in settings(config).items() if x.recorded}


def values(config: object) -> dict[str, Any]:
  """Returns the values of a config's settings by name."""
  return {
    name: operator.attrgetter(".".join(setting.path))(config)
    for name, setting in settings(config).items()
  }


def in_json(config: object) -> dict[str, Any]:
  """Returns the values of a config's settings as JSON, tuples as lists."""
  return {name: _in_json(value) for name, value in values(config).items()}


def replaced(config: C, values: Mapping[str, Any]) -> C:
  """Returns a copy of a config with other values of some settings, by name.

  A list becomes a tuple.

  Raises:
    ValueError: a name is not that of a setting.
  """
  by_name = settings(config)
  unknown = sorted(set(values) - set(by_name))
  if unknown:
    raise ValueError(
      f"expected settings of {type(config).__qualname__}, which are"
      f" {', '.join(by_name)}; found {', '.join(unknown)}"
    )
  return _rebuilt(
    config,
    {
      by_name[name].path: tuple(value) if item(by_name[name].kind) else value
      for name, value in values.items()
    },
  )


def differing(before: object, after: object) -> dict[str, Any]:
  """Returns the settings of `after` that are new or differ from `before`."""
  old = values(before)
  new = values(after)
  return {k: x for k, x in new.items() if k not in old or old[k] != x}


def beyond_settings(config: Any) -> list[str]:
  """Returns the fields that are not settings and differ from their defaults."""
  names = []
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if _is_config(value):
      names += beyond_settings(value)
    elif not _is_setting(typing.get_type_hints(type(config))[field.name]):
      names += [field.name] if value != _default(field) else []
  return names


def _settings(config: Any, path: tuple[str, ...]) -> Iterator[Setting]:
  owner: type = type(config)
  hints, sentences = typing.get_type_hints(owner), _sentences(owner)
  for field in dataclasses.fields(config):
    name, value = field.name, getattr(config, field.name)
    kind = hints[name]
    if _is_config(value):
      yield from _settings(value, (*path, name))
    elif field.init and _is_setting(kind):
      yield Setting(
        name=name,
        path=(*path, name),
        owner=owner,
        kind=kind,
        default=_default(field),
        about=types.about(config)[name],
        help=sentences.get(name, ""),
      )


def _in_json(value: object) -> object:
  if isinstance(value, Mapping):
    return {key: _in_json(x) for key, x in value.items()}
  if isinstance(value, list | tuple):
    return [_in_json(x) for x in value]
  return value


def _is_config(value: object) -> bool:
  return (
    dataclasses.is_dataclass(value)
    and not isinstance(value, type)
    and type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
  )


def _is_setting(kind: object) -> bool:
  if choices(kind):
    return all(isinstance(choice, str) for choice in choices(kind))
  return kind in _PLAIN or kind in _ITEMS


def _default(field: "dataclasses.Field[object]") -> object:
  if field.default_factory is not dataclasses.MISSING:
    return field.default_factory()
  return field.default


@functools.cache
def _sentences(owner: type) -> dict[str, str]:
  sentences: dict[str, str] = {}
  for base in reversed(owner.__mro__):
    # `base.__doc__` may be inherited; `vars` has only the class's own.
    sentences |= _attributes(vars(base)["__doc__"] or "")
  return sentences


def _attributes(text: str) -> dict[str, str]:
  entries: dict[str, str] = {}
  section = f"\n{inspect.cleandoc(text)}".partition("\nAttributes:\n")[2]
  margin, name = section[: len(section) - len(section.lstrip(" "))], ""
  for line in section.splitlines():
    if line[:1].strip():  # The next section.
      break
    if entry := re.match(rf"{margin}(\w+)(?: \(.*?\))?: (.*)", line):
      name, entries[entry[1]] = entry[1], entry[2]
    elif name:
      entries[name] += " " + line
  return {name: " ".join(words.split()) for name, words in entries.items()}


def _rebuilt(config: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
  fields: dict[str, Any] = {}
  for name in dict.fromkeys(path[0] for path in changes):
    inner = {p[1:]: value for p, value in changes.items() if p[0] == name}
    fields[name] = (
      inner[()] if () in inner else _rebuilt(getattr(config, name), inner)
    )
  return dataclasses.replace(config, **fields)
