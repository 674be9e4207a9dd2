"""Command lines from configs: each setting is a flag.

See `configs` for settings. Help has no colours; an error is one line.
"""

import dataclasses
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, TypeVar

from seedx import files, types
from seedx.app.settings import configs, synonyms, wording

C = TypeVar("C")

# The column in which the sentences of `--help` begin.
_COLUMN = 24

_NUMBERS = {int: "as a whole number", float: "as a number"}

_KEYWORDS = "as KEY=VALUE,KEY=VALUE or as a JSON object"

_WHOLE = "; write a thousand as 1000, 1_000, 1e3 or 1000.0"


def run(
  program: Callable[[C], int],
  options: C,
  name: str,
  description: str | None,
  argv: Sequence[str] | None,
  *,
  positional: Sequence[str] = (),
) -> int:
  """Parses a command line and runs a program with its options.

  Prints a `types.ConfigError` of the program as one line and exits with
  status 2.

  Args:
    program: function from the parsed options to an exit status.
    options: config with the defaults.
    name: name of the program, such as `seedx plot`.
    description: text at the top of `--help`.
    argv: arguments without the program's name; this process's if None.
    positional: see `parse`.

  Returns:
    The exit status.
  """
  argv = sys.argv[1:] if argv is None else argv
  try:
    with files.tentative():
      return program(
        parse(options, argv, name, description, positional=positional)
      )
  except types.ConfigError as error:
    fail(error)


def parse(
  config: C,
  argv: Sequence[str],
  program: str,
  description: str | None,
  *,
  positional: Sequence[str] = (),
  often: Collection[str] = (),
  unmeasured: Collection[str] = (),
) -> C:
  """Returns a config with the values of a command line.

  Prints one line and exits with status 2 if the command line is wrong.

  Args:
    config: config with the defaults.
    argv: arguments without the program's name.
    program: name of the program.
    description: text at the top of `--help`.
    positional: names of settings that are words without a flag. These settings
      are required; a tuple takes one or more words.
    often: names of settings that `--help` lists first.
    unmeasured: names of settings from presets with `measured=False`.
  """
  settings = configs.settings(config)
  arguments = [settings[name] for name in positional]
  if asks_for_help(argv):
    print(f"usage: {program}", *map(_word, arguments), "[options]\n")
    print(_help(config, description, positional, often, unmeasured))
    raise SystemExit(0)
  flags = [x for name, x in settings.items() if name not in positional]
  try:
    values, rest = _read_flags(flags, argv)
    values |= _read_words(arguments, rest, flags)
    return configs.replaced(config, values)
  except _UsageError as error:
    _refuse(str(error))
  except types.ConfigError as error:  # The error names fields, not flags.
    names = {name: wording.flag(name) for name in settings}
    names |= {name: name.upper() for name in positional}
    words = re.split(r"(?<=\bexpected )(\w+)", str(error))
    _refuse("".join(names.get(word, word) for word in words))


def asks_for_help(argv: Sequence[str]) -> bool:
  """Returns whether a command line has `--help` or `-h`."""
  return not {"-h", "--help"}.isdisjoint(argv)


def read_some(
  config: object, names: Sequence[str], argv: Sequence[str]
) -> dict[str, Any]:
  """Returns the values of some settings; ignores the other words.

  Prints one line and exits with status 2 if one of these values is wrong. The
  range of a value is not checked.

  Raises:
    ValueError: a name is not that of a setting.
  """
  settings = configs.settings(config)
  unknown = sorted(set(names) - set(settings))
  if unknown:
    raise ValueError(f"expected names of settings, found {', '.join(unknown)}")
  try:
    read, _ = _read_flags([settings[name] for name in names], argv)
  except _UsageError as error:
    _refuse(str(error))
  values = configs.values(config)
  return {name: values[name] for name in names} | read


def given(config: object, argv: Sequence[str]) -> set[str]:
  """Returns the names of the settings that a command line sets."""
  words = {_flag_in(word) for word in argv}
  settings = configs.settings(config).values()
  return {x.name for x in settings if not words.isdisjoint(_flags(x))}


def fail(error: types.ConfigError) -> NoReturn:
  """Prints an error as one line and exits with status 2."""
  line = " ".join(str(error).split())
  # The line may quote a file by another author.
  print(f"error: {types.printable(line)}", file=sys.stderr)
  raise SystemExit(2)


class _UsageError(Exception):
  """An error in a command line."""


def _refuse(message: str) -> NoReturn:
  fail(types.ConfigError(f"{message}; see --help"))


def _read_flags(
  settings: Sequence[configs.Setting], argv: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
  """Returns the values of the settings that are set, and the other words."""
  by_flag = {x: setting for setting in settings for x in _flags(setting)}
  values: dict[str, Any] = {}
  rest: list[str] = []
  words = list(argv)
  while words:
    word = words.pop(0)
    if word == "--":  # No flag follows.
      return values, [*rest, *words]
    name, (_, equals, text) = _flag_in(word), word.partition("=")
    setting = by_flag.get(name)
    if setting is None:
      rest.append(word)
      continue
    if setting.kind is bool:
      if equals:
        raise _UsageError(f"expected a switch without a value, found {word}")
      values[setting.name] = name == wording.flag(setting.name)
      continue
    if not equals:
      # A word that begins with a hyphen is a value only if it is a number.
      if not words or re.match(r"--|-(?!inf$)[a-zA-Z]", words[0]):
        raise _UsageError(f"expected a value after {word}")
      text = words.pop(0)
    values[setting.name] = _read(setting.kind, text, name)
  return values, rest


def _read_words(
  positional: Sequence[configs.Setting],
  words: list[str],
  flags: Sequence[configs.Setting],
) -> dict[str, Any]:
  for word in words:
    if word.startswith("-"):
      raise _UsageError(f"unrecognized arguments: {word}{_hint(word, flags)}")
  values: dict[str, Any] = {}
  for i, setting in enumerate(positional, 1):
    name, item = setting.name.upper(), configs.item(setting.kind)
    if not words:
      raise _UsageError(f"expected {name}, found none")
    # Each argument after this one needs at least one word.
    count = max(1, len(words) - len(positional) + i) if item else 1
    own_words, words = words[:count], words[count:]
    items = tuple(_read(item or setting.kind, word, name) for word in own_words)
    values[setting.name] = items if item else items[0]
  if words:
    raise _UsageError(
      f"unrecognized arguments: {' '.join(words)} (a list has commas, as in"
      " 64,64; a switch has no value, but a form --no-...)"
    )
  return values


def _hint(word: str, settings: Sequence[configs.Setting]) -> str:
  unknown, valid = _flag_in(word), [x for s in settings for x in _flags(s)]
  renamed = map(wording.flag, synonyms.of(unknown[2:].replace("-", "_")))
  same_meaning = [x for x in renamed if x in valid]
  similar = difflib.get_close_matches(unknown, valid)
  hint, flags = ("here", same_meaning) if same_meaning else ("nearest", similar)
  return f" ({hint}: {', '.join(flags)})" if flags else ""


def _read(kind: Any, text: str, name: str) -> Any:
  """Reads the value of a setting; `name` is the setting's name in errors."""
  choices, item = configs.choices(kind), configs.item(kind)
  if choices and text not in choices:
    allowed = ", ".join(choices)
    raise _UsageError(
      f"invalid choice for {name}: expected {allowed}, found {text!r}"
    )
  if choices or kind is str:
    return text
  try:
    if item is not None:
      parts = [part for part in text.split(",") if part]
      return tuple(x if item is str else types.number(int, x) for x in parts)
    return (
      types.number(kind, text) if kind in _NUMBERS else wording.keywords(text)
    )
  except (ValueError, RecursionError):
    form = "as whole numbers N,N" if item else _NUMBERS.get(kind, _KEYWORDS)
    remedy = _WHOLE if int in (item, kind) else ""
    raise _UsageError(
      f"expected {name} {form}, found {text!r}{remedy}"
    ) from None


def _flag_in(word: str) -> str:
  """Returns the flag in a word, its underscores replaced by hyphens."""
  return word[:2] + word[2:].partition("=")[0].replace("_", "-")


def _flags(setting: configs.Setting) -> list[str]:
  name = wording.flag(setting.name)
  return [name, f"--no-{name[2:]}"] if setting.kind is bool else [name]


def _word(setting: configs.Setting) -> str:
  name = setting.name.upper()
  return f"{name} [{name} ...]" if configs.item(setting.kind) else name


def _metavar(setting: configs.Setting) -> str:
  if configs.choices(setting.kind):
    return f"{{{','.join(configs.choices(setting.kind))}}}"
  # The last word of a long name describes the value: `--run-dir DIR`.
  last = setting.name.rpartition("_")[2].upper()
  return {int: "N", float: "X"}.get(setting.kind, last)


def parts(config: object) -> dict[str, list[configs.Setting]]:
  """Groups the settings of a config by part: the inner config that has them.

  A class's own settings come before those inherited from another package.
  """
  settings = sorted(
    configs.settings(config).values(), key=lambda x: _place(config, x.path)
  )
  groups: dict[str, list[configs.Setting]] = {}
  for setting in settings:
    part = setting.path[-2] if len(setting.path) > 1 else "options"
    groups.setdefault(part, []).append(setting)
  return groups


def _place(config: Any, path: Sequence[str]) -> list[tuple[bool, int]]:
  """Returns a sort key: fields from another package come last."""
  place = []
  for name in path:
    fields = [field.name for field in dataclasses.fields(config)]
    *_, definer = (
      x
      for x in type(config).mro()
      if name in getattr(x, "__dataclass_fields__", ())
    )
    packages = {
      x.__module__.rpartition(".")[0] for x in (definer, type(config))
    }
    place.append((len(packages) > 1, fields.index(name)))
    config = getattr(config, name)
  return place


def _help(
  config: object,
  description: str | None,
  positional: Sequence[str],
  often: Collection[str],
  unmeasured: Collection[str],
) -> str:
  by_name, values = configs.settings(config), configs.values(config)

  def row(setting: configs.Setting) -> str:
    name, sentence = setting.name, setting.help.removesuffix(".")
    sentence += _defaults(values[name], setting.default, name in unmeasured)
    flags = ", ".join(_flags(setting))
    if setting.kind is not bool:
      flags += f" {_metavar(setting)}"
    return _row(flags, sentence.strip())

  groups = {
    "arguments": [_row(x.upper(), by_name[x].help) for x in positional],
    "often changed": [],
    "options": [_row("-h, --help", "show this message and exit")],
  }
  for part, settings in parts(config).items():
    for setting in settings:
      heading = "often changed" if setting.name in often else part
      if setting.name not in positional:
        groups.setdefault(heading, []).append(row(setting))
  texts = [f"{x}:\n" + "\n".join(rows) for x, rows in groups.items() if rows]
  return "\n\n".join([*filter(None, [(description or "").strip()]), *texts])


def _defaults(value: object, default: object, is_unmeasured: bool) -> str:
  """Formats the default and, if there is one, a preset's value for `--help`."""
  text = wording.shown(value)
  if default is not dataclasses.MISSING and default != value:
    text = f"{text or 'empty'}, from a preset"
    text += ", not measured" if is_unmeasured else ""
    text += (
      f"; {wording.shown(default)} without it" if wording.shown(default) else ""
    )
  return f" (default: {text})" if text else ""


def _row(name: str, sentence: str) -> str:
  fits_beside = len(name) + 4 <= _COLUMN
  lines = textwrap.wrap(
    sentence,
    max(2 * _COLUMN, shutil.get_terminal_size().columns),
    initial_indent=f"  {name}".ljust(_COLUMN) if fits_beside else " " * _COLUMN,
    subsequent_indent=" " * _COLUMN,
    break_long_words=False,
    break_on_hyphens=False,
  )
  return "\n".join(lines if fits_beside and lines else [f"  {name}", *lines])
