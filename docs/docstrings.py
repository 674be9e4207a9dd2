"""A Sphinx extension that shows seedx's docstrings on the site.

The docstrings are plain text: code in single backquotes, equations and figures
as indented blocks, and Google's sections. The extension makes
reStructuredText of them, lists the fields of configs with their types and
defaults, and links names of the API to their pages.
"""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_PAGE = pathlib.Path(__file__).parent / "api.md"
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
_ITEM = re.compile(r"\s*([*-]|\d+\.) ")
_CODE = re.compile(r"(`[^`]+`)")
# Characters with a meaning in reStructuredText; emphasis keeps its own.
_EMPHASIS = re.compile(r"((?<![\w*])(\*{1,2})(?=\S)[^*]+(?<=\S)\2(?![\w*]))")
_SPECIAL = re.compile(r"([*|\\]|(?<=\w)_(?!\w))")


def setup(app: Sphinx) -> dict[str, Any]:
  """Connects the extension; napoleon then converts the sections."""
  app.connect("autodoc-process-docstring", _convert, priority=400)
  app.connect("autodoc-process-signature", _without_fields)
  app.connect("autodoc-skip-member", _is_field)
  app.connect("autodoc-process-bases", _name_bases)
  app.connect("doctree-read", _draw_dashes)
  return {"parallel_read_safe": True}


def modules() -> list[str]:
  """Returns the modules that docs/api.md lists."""
  return re.findall(r"^\| \[`(seedx[\w.]*)`\]", _PAGE.read_text(), re.M)


def page(module: str) -> str:
  """Returns the source of a module's page."""
  lines = [module, "=" * len(module), "", f".. automodule:: {module}", ""]
  for name, value in public(module).items():
    if inspect.isclass(value):
      lines += [f".. autoclass:: {module}.{name}", "   :members:"]
      lines.append("   :member-order: bysource")
      if any(x.__module__.startswith("seedx.") for x in value.__bases__):
        lines.append("   :show-inheritance:")
      lines.append("")
    else:
      # Sphinx looks for the signature's defaults in the code.
      getattr(value, "__dict__", {}).pop("__signature__", None)
      lines += [f".. autofunction:: {module}.{name}", ""]
  return "\n".join(lines)


def public(module: str) -> dict[str, Any]:
  """Returns the classes and functions of a module by name."""
  loaded = importlib.import_module(module)
  # The modules of `seedx.app` are imported when they are used.
  names = getattr(loaded, "__all__", getattr(loaded, "_MODULES", None))
  if names is None:
    names = [
      name
      for name, value in vars(loaded).items()
      if name[0] != "_" and getattr(value, "__module__", "") == module
    ]
  values = {name: getattr(loaded, name) for name in names}
  return {
    name: value
    for name, value in values.items()
    if inspect.isclass(value) or inspect.isroutine(value)
  }


def converted(text: str, module: str = "") -> list[str]:
  """Returns the reStructuredText of a docstring, without its `Attributes:`.

  Args:
    text: docstring without common indentation.
    module: module whose names it may use without a prefix.
  """
  lines: list[str] = []
  section = in_list = after_colons = False
  margin = 0
  # Code that begins on one line and ends on the next.
  spans = r"`[^`\n]+(?:\n[^`\n]+)?`"
  text = re.sub(spans, lambda x: re.sub(r"\s*\n\s*", " ", x[0]), text)
  for block in re.split(r"\n\s*\n", text.strip("\n")):
    first, *_ = rows = block.split("\n")
    if _SECTION.match(first):
      section = True
      if first == "Attributes:":
        continue
    if not in_list and first[0] == " " and _ITEM.match(first):
      margin = len(first) - len(first.lstrip())
    in_list = (first[0] == " " and in_list) or _ITEM.match(first) is not None
    if section:
      lines += [_inline(row, module, names=True) for row in rows]
    elif first.startswith(">>>"):
      lines += rows
    elif first[0] == " " and not in_list:
      lines += rows if after_colons else ["::", "", *rows]
    else:
      lines += _paragraph([x[margin:] if in_list else x for x in rows], module)
    after_colons = not section and rows[-1].endswith("::")
    lines.append("")
  return lines


def _paragraph(rows: list[str], module: str) -> Iterator[str]:
  """Yields the lines of a paragraph or of a list, which may be in one block."""
  in_list = _ITEM.match(rows[0]) is not None or rows[0][0] == " "
  for i, row in enumerate(rows):
    if not in_list and _ITEM.match(row):
      yield ""
      in_list = True
    if row[0] == " " and not in_list:  # A list without bullets, or a figure.
      yield from ("", "::", "", *rows[i:])
      return
    yield _inline(row, module)


def _inline(row: str, module: str, names: bool = False) -> str:
  """Converts the code, the names and the special characters of a line.

  Args:
    row: line of a docstring.
    module: see `converted`.
    names: whether the line may begin with an argument's name and a colon.
  """
  start = re.match(r"\s*[*-] |\s*", row)
  if names:
    start = re.match(r"\s*(\*{0,2}[\w.]+: )?", row)
  assert start is not None
  head, rest = row[: start.end()].replace("_:", r"\_:"), row[start.end() :]
  error = head.strip().rstrip(":")
  if error in _documented():  # An error of `Raises:`.
    head = head.replace(error, _documented()[error][0])
  parts = _CODE.split(rest)
  for i, part in enumerate(parts):
    if i % 2:
      parts[i] = _code(part.strip("`"), module)
    else:
      parts[i] = _escaped(part)
      # Code of reStructuredText must not touch a letter.
      if i and part[:1].isalnum():
        parts[i] = "\\ " + parts[i]
  return head + "".join(parts)


def _escaped(text: str) -> str:
  """Escapes characters with a meaning in reStructuredText."""
  # The pattern has two groups, and the second one is a part of the first.
  pieces = _EMPHASIS.split(text)
  pieces[::3] = [_SPECIAL.sub(r"\\\1", x) for x in pieces[::3]]
  del pieces[2::3]
  return "".join(pieces)


def _code(code: str, module: str) -> str:
  """Returns code, with a link if it is a name of the API."""
  # A single word may be anything, such as the name of an argument.
  is_name = "_" in code or code[:1].isupper()
  own = f"{module.rpartition('.')[2]}.{code}" if is_name else ""
  full, kind = _documented().get(code) or _documented().get(own) or ("", "")
  return f":py:{kind}:`{code} <{full}>`" if full else f"``{code}``"


@functools.cache
def _documented() -> Mapping[str, tuple[str, str]]:
  """Returns full names and their roles by names that docstrings use."""
  targets: dict[str, tuple[str, str]] = {}
  for module in modules():
    short = module.rpartition(".")[2]
    if module.count(".") > 1:
      targets[module.removeprefix("seedx.")] = (module, "mod")
    for name, value in public(module).items():
      target = (
        f"{module}.{name}",
        "class" if inspect.isclass(value) else "func",
      )
      home = value.__module__
      spellings = {
        target[0],
        target[0].removeprefix("seedx."),
        f"{short}.{name}",
        f"{home}.{name}",
        f"{home.rpartition('.')[2]}.{name}",
      }
      targets |= {x: target for x in spellings if x not in targets}
  return targets


def _convert(
  app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
  module = name if what == "module" else getattr(obj, "__module__", "")
  text = inspect.cleandoc("\n".join(lines))
  lines[:] = converted(text, module or "")
  if what == "property":
    # Without a comment, napoleon would take the text before a colon for a type.
    lines[:0] = ["..", ""]
  if what in ("class", "exception"):
    lines += _field_list(obj)


def _field_list(owner: type) -> Iterator[str]:
  """Yields a definition list of a class's fields, its own ones first."""
  documented, left = _sentences(owner), {**_fields(owner)}
  for base in owner.__mro__:
    own = [x for x in left if x in vars(base).get("__annotations__", ())]
    names = [x for x in own if x in documented]
    if names:
      inherited = f" of {_short(f'{base.__module__}.{base.__qualname__}')}"
      yield from ("", f".. rubric:: Fields{'' if base is owner else inherited}")
      yield ""
    for x in names:
      classifiers = "".join(f" : ``{text}``" for text in left[x] if text)
      yield f"``{x}``{classifiers}"
      yield "  " + _inline(documented[x], owner.__module__)
    for x in own:
      del left[x]
  yield ""


def _fields(owner: type) -> dict[str, tuple[str, str]]:
  """Returns the texts of the fields' types and defaults by name."""
  try:
    hints = typing.get_type_hints(owner)
  except NameError:  # A type that is imported only for checks.
    hints = inspect.get_annotations(owner)
  defaults: dict[str, object] = {**getattr(owner, "_field_defaults", {})}
  names = [*hints]
  if dataclasses.is_dataclass(owner):
    fields = [x for x in dataclasses.fields(owner) if x.init]
    names = [x.name for x in fields]
    for x in fields:
      if x.default_factory is not dataclasses.MISSING:
        defaults[x.name] = x.default_factory()
      elif x.default is not dataclasses.MISSING:
        defaults[x.name] = x.default
  return {
    x: (
      _short(inspect.formatannotation(hints[x])),
      f"default {_value(defaults[x])}" if x in defaults else "",
    )
    for x in names
  }


def _value(value: object) -> str:
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    kind = type(value)
    return _short(f"{kind.__module__}.{kind.__qualname__}") + "()"
  if isinstance(value, types.FunctionType):
    return value.__name__.strip("<>")
  return textwrap.shorten(repr(value), 60, placeholder=" ...")


def _short(text: str) -> str:
  """Shortens the names of classes in a text, as in `losses.Transitions`."""
  text = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", text).strip("'")
  text = re.sub(r"\b(collections\.abc|typing|jaxlib\._jax)\.|~", "", text)

  def short(match: re.Match[str]) -> str:
    name, _ = _documented().get(match[0], (match[0], ""))
    return ".".join(name.split(".")[-2:])

  return re.sub(r"\bseedx(?:\.\w+)+", short, text)


def _sentences(owner: type) -> dict[str, str]:
  """Returns the entries of `Attributes:` of a class and its bases."""
  entries: dict[str, str] = {}
  for base in reversed(owner.__mro__):
    text = inspect.cleandoc(vars(base).get("__doc__") or "")
    section = f"\n{text}".partition("\nAttributes:\n")[2]
    section = re.split(r"\n(?=\S)", section)[0]
    for entry in re.split(r"^  (?=\w)", section, flags=re.M)[1:]:
      name, _, sentence = " ".join(entry.split()).partition(": ")
      entries[name] = sentence
  return entries


def _without_fields(
  app: Sphinx, what: str, name: str, obj: Any, *_: Any
) -> tuple[str, None] | None:
  """Leaves out the signatures of classes whose fields are listed."""
  is_listed = dataclasses.is_dataclass(obj) or hasattr(obj, "_fields")
  is_listed = is_listed or getattr(obj, "_is_protocol", False)
  return ("", None) if what == "class" and is_listed else None


def _is_field(
  app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
  """Skips fields, which are listed: of named tuples, and types of arrays."""
  is_type = inspect.isclass(obj) and not obj.__module__.startswith("seedx")
  is_property = type(obj).__name__ == "_tuplegetter"
  return True if what == "class" and (is_type or is_property) else None


def _name_bases(
  app: Sphinx, name: str, obj: Any, options: Any, bases: list[Any]
) -> None:
  """Names the modules of base classes, since most are called Config."""
  for i, base in enumerate(bases):
    full = f"{base.__module__}.{base.__qualname__}"
    full, _ = _documented().get(full, (full, ""))
    bases[i] = f":py:class:`{_short(full)} <{full}>`"


def _draw_dashes(app: Sphinx, tree: nodes.document) -> None:
  """Replaces the hyphens between an argument and its text by a dash."""
  for text in list(tree.findall(nodes.Text)):
    if text == " -- ":
      text.parent.replace(text, nodes.Text(" \N{EN DASH} "))
