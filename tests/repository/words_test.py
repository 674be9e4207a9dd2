"""A search for text that is not plain English: a floor, not the goal.

CONTRIBUTING.md has the rules. After a finding, rewrite the whole sentence or
name; do not only replace the word. If a phrase is about people, or is the best
one for another reason, exempt it with the comment `# words: REASON` on its
line; for a docstring, the comment stands behind the closing quotes.
"""

import ast
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_CODE = sorted({x.parent.name for x in _ROOT.glob("*/*.py")})
_PAGES = ("*.md", "docs/**/*.md", ".ci/*.md", "colab/*.md")
# A docstring or an entry that begins with such a word lacks its noun or verb.
_START = re.compile(
  r"\W*(?:also|as|at|by|else|for|from|in|of|on|per|so|than|that|then|these|those|"
  r"to|until|what|when|where|which|who|whom|whose|with|within|without)\b",
  re.IGNORECASE,
)
# A comment may begin with more words, because it gives a reason.
_COMMENT_START = re.compile(
  r"\W*(?:of|what|which|who|whom|whose|than)\b", re.IGNORECASE
)
_PHRASE = re.compile(
  r"""\b(?:
    so\ (?:many|much)\b(?!\ (?:as|that)\b)  # A count without its noun.
    |(?:says?|said|saying|tells?|told|telling|knows?|hears?|heard)\b  # People.
    |(?:who|whom|whoever|nobody|somebody|anybody)\b  # People.
    |(?:go|goes|going|went|gone)\ on\b  # Continue.
    |how\ many\b(?!\ \w+\ (?:to|there)\b)  # The number of.
    |the\ former\b|the\ latter\b|the\ same,\ of\b  # The noun itself.
  )""",
  re.IGNORECASE | re.VERBOSE,
)
# People.
_PERSON = re.compile(
  r"\b(?:people|researchers?|readers?|users?|authors?|somebody|anyone|everyone|"
  r"one|those|you|person|newcomers?|developers?|maintainers?|attackers?|others?)"
  r"(?:,? (?:who|whom|whose))?"
  r"(?: (?:say|says|said|know|knows|tell|tells|told|go on|goes on))?\b",
  re.IGNORECASE,
)
# Names that describe nothing.
_NAMES = frozenset(
  ["found", "known", "least", "most", "said", "says", "tells", "told"]
)
# Words that no function's or test's name may have.
_NAME_WORD = re.compile(
  r"(?:^|_)(?:nobody|said|says?|tells?|told|who|whoever|whom|whose)(?:_|$)"
)
_ENTRY = re.compile(r"^\s+\*{0,2}([a-z_][\w, *.`]*): +(\S.*)$")
_SECTIONS = re.compile(r"^\s*(Args|Attributes|Returns|Yields|Raises):\s*$")


def _docstrings(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
  for node in nodes:
    if isinstance(
      node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ):
      match node.body:
        case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
          yield text


def _phrases(text: str) -> Iterator[str]:
  """Yields the banned phrases of a text, code and quotations left out."""
  text = re.sub(r"`[^`]*`|\"[^\"]*\"", "`", " ".join(text.split()))
  text = _PERSON.sub("people", text)
  for match in _PHRASE.finditer(text):
    yield match.group()


def _beginnings(docstring: str) -> Iterator[str]:
  """Yields the beginnings of a docstring and its entries that lack a noun."""
  lines = docstring.splitlines()
  if _START.match(lines[0]):
    yield lines[0].strip()
  section = ""
  indent = 0
  for line in lines[1:]:
    if heading := _SECTIONS.match(line):
      section, indent = heading.group(1), 0
    elif section and (entry := _ENTRY.match(line)):
      here = len(line) - len(line.lstrip())
      indent = indent or here
      is_named = here == indent and section in ("Args", "Attributes")
      if is_named and _START.match(entry.group(2)):
        yield line.strip()


def in_code(source: str) -> list[tuple[int, str]]:
  """Returns the findings in a Python file: line numbers and phrases."""
  nodes, lines = list(ast.walk(ast.parse(source))), source.splitlines()
  findings, texts = [], set()
  for text in _docstrings(nodes):
    texts.add(id(text))
    if "# words:" not in lines[text.end_lineno - 1]:
      findings += [(text.lineno, x) for x in _beginnings(text.value)]
      findings += [(text.lineno, x) for x in _phrases(text.value)]
  for node in nodes:
    match node:
      case ast.Constant(value=str() as text) if id(node) not in texts:
        if (
          text.count(" ") >= 2 and "# words:" not in lines[node.end_lineno - 1]
        ):
          findings += [(node.lineno, x) for x in _phrases(text)]
      case (
        ast.Name(id=name, ctx=ast.Store())
        | ast.Attribute(attr=name, ctx=ast.Store())
        | ast.arg(arg=name)
      ):
        if name.strip("_") in _NAMES:
          findings.append((node.lineno, f"the name {name}"))
      case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
        if name.strip("_") in _NAMES or _NAME_WORD.search(name):
          findings.append((node.lineno, f"the name {name}"))
  comment, first_line = "", 0
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      text = token.string.lstrip("#: ")
      alone = not token.line[: token.start[1]].strip()
      if (
        comment
        and alone
        and token.start[0] == first_line + comment.count("\n") + 1
      ):
        comment += "\n" + text
      else:
        findings += _in_comment(comment, first_line)
        comment, first_line = text, token.start[0]
  findings += _in_comment(comment, first_line)
  return sorted(set(findings))


def _in_comment(comment: str, line: int) -> list[tuple[int, str]]:
  if not comment or comment.startswith("words:"):
    return []
  findings = [(line, x) for x in _phrases(comment)]
  if _COMMENT_START.match(comment):
    findings.append((line, comment.splitlines()[0]))
  return findings


def in_page(text: str) -> list[tuple[int, str]]:
  """Returns the findings in a page of Markdown, its code left out."""
  findings, in_block = [], False
  for number, line in enumerate(text.splitlines(), 1):
    if line.lstrip().startswith("```"):
      in_block = not in_block
    elif not in_block:
      findings += [(number, x) for x in _phrases(line)]
  return findings


@pytest.mark.parametrize("folder", _CODE)
def test_code_is_plain(folder):
  findings = []
  for path in sorted((_ROOT / folder).rglob("*.py")):
    if path == pathlib.Path(__file__):
      continue
    name = path.relative_to(_ROOT)
    findings += [f"{name}:{n}: {x}" for n, x in in_code(path.read_text())]
  assert not findings, "\n".join(findings)


def test_pages_are_plain():
  findings = []
  for pattern in _PAGES:
    for path in sorted(_ROOT.glob(pattern)):
      name = path.relative_to(_ROOT)
      findings += [f"{name}:{n}: {x}" for n, x in in_page(path.read_text())]
  assert not findings, "\n".join(findings)


@pytest.mark.parametrize(
  "source",
  [
    'def f():\n  """Sends what it is told."""',
    'def f(x):\n  """Sends.\n\n  Args:\n    x: to send.\n  """',
    "x = 1  # Whoever reads this waits.",
    'raise ValueError("the server says that it is full")',
    "def test_who_waits_is_served(): pass",
    "self.said = 1",
    "# A text that goes\n# on in a second line.",
  ],
)
def test_bad_english_in_code_is_found(source):
  assert in_code(source)


@pytest.mark.parametrize(
  "source",
  [
    'def f(x):\n  """Sends rows.\n\n  Args:\n    x: rows to send.\n  """',
    '"""A page for users who say what they want."""',
    'def f():\n  """Nobody reads this."""  # words: a quotation.',
    "# The reason is in `said`.",
  ],
)
def test_good_english_in_code_passes(source):
  assert not in_code(source)
