"""Builds the site from the pages, the notebooks and the docstrings.

  python -m docs.build
  python -m docs.build --output /tmp/site

The pages are copied into a temporary folder, where links to other files of the
repository become links to the site's page of that file, or else to the
repository. `external_links.txt` lists all links to other sites. Any warning,
such as that of a link without a target, ends the build with status 1.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence

from sphinx.cmd import build as sphinx_build

from docs import docstrings
from seedx import REPOSITORY

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent
_ADDRESS = f"https://github.com/{REPOSITORY}"
# The groups of the navigation. A page that no group names is among the guides,
# or in the group of its folder: `pipelines`, `agents` or `notebooks`.
_GROUPS: Mapping[str, Sequence[str]] = {
  "Start": ("start", "tasks", "coming_from"),
  "Guides": ("environments",),
  "Pipelines": ("pipelines",),
  "Agents": ("agents",),
  "Notebooks": (),
  "Reference": ("metrics", "glossary", "wire", "api"),
  "Project": (
    "results",
    "results_speed",
    "results_games",
    "results_control",
    "scale",
    "not_here",
    "internals",
    "libraries",
    "changelog",
    "contributing",
    "security",
  ),
}
# Pages that the search leaves out: their words are those of all other pages.
_NOT_SEARCHED = ("changelog", "contributing")
_IMAGES = (".gif", ".png", ".svg")
_BADGE = re.compile(r"\[!\[Open in Colab\]\([^)]*\)\]")
_PICTURE = re.compile(
  r"<picture>\s*<source [^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
  r"<img (?P<rest>[^>]*)>\s*</picture>"
)
# The targets of links and images, in Markdown, HTML and directives.
_TARGET = re.compile(
  r"(?P<before>\]\(|\b(?:src|href)=\"|^(?:`{3,}|:{3,})\{(?:image|figure)\} +"
  r"|^\[[^\]]+\]: +)(?P<target>[^)\s\"]+)",
  re.MULTILINE,
)
# Code, in which nothing is a link; blocks of directives are no code.
_CODE = re.compile(
  r"^(?P<fence>`{3,}|~{3,})(?!\{)[^\n]*\n.*?^(?P=fence)[ \t]*$|`[^`\n]+`",
  re.MULTILINE | re.DOTALL,
)


def main(argv: Sequence[str] | None = None) -> int:
  """Builds the site; returns the exit status, 1 after a warning."""
  parser = argparse.ArgumentParser(
    "python -m docs.build",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--output", default=FOLDER / "_build" / "html", type=pathlib.Path
  )
  output = parser.parse_args(argv).output
  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  with tempfile.TemporaryDirectory() as directory:
    folder = pathlib.Path(directory)
    links = stage(folder)
    status = html(folder, output)
  (output / "external_links.txt").write_text("\n".join(links) + "\n")
  print(f"{len(links)} external links are in {output}/external_links.txt")
  return status


def html(sources: pathlib.Path, output: pathlib.Path) -> int:
  """Builds the pages of a folder; returns the exit status."""
  with tempfile.TemporaryDirectory() as directory:
    words = ["-W", "--keep-going", "-q", "-E", "-b", "html", "-c", str(FOLDER)]
    return sphinx_build.main(
      [*words, "-d", directory, str(sources), str(output)]
    )


def pages() -> dict[str, str]:
  """Returns the site's page of each file of the repository that has one.

  Files are relative to the repository, and pages have no suffix. The order is
  that of the links in the index; other pages follow.
  """
  named = {"README.md": "index"}
  for path in sorted(FOLDER.rglob("*.md")):
    page = path.relative_to(FOLDER)
    if page.parts[0] != "_build":
      named[f"docs/{page}"] = str(page.with_suffix(""))
  for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
    named[f"{name}.md"] = name.lower()
  for path in sorted((ROOT / "colab").glob("*.ipynb")):
    named[f"colab/{path.name}"] = f"notebooks/{path.stem}"
  for module in docstrings.modules():
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    named[str(file.relative_to(ROOT))] = f"api/{module}"
  linked = re.findall(r"\]\(([^)#]+)", (FOLDER / "index.md").read_text())
  files = [os.path.relpath(FOLDER / x, ROOT) for x in linked]
  return {x: named[x] for x in [*files, *named] if x in named}


def stage(folder: pathlib.Path) -> list[str]:
  """Writes the sources of all pages; returns the links to other sites."""
  named, links = pages(), set[str]()
  for file, page in named.items():
    path = folder / page
    path.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / file
    change = functools.partial(_changed, folder, file, named, links)
    if file == "README.md":
      continue
    if page.startswith("api/"):
      module = page.removeprefix("api/")
      (folder / f"{page}.rst").write_text(docstrings.page(module))
    elif source.suffix == ".ipynb":
      text = json.dumps(_notebook(json.loads(source.read_text()), change))
      (folder / f"{page}.ipynb").write_text(text)
    else:
      text = change(source.read_text())
      if page == "index":
        text += navigation(list(dict.fromkeys(named.values())))
      elif page == "api":
        text += _contents([x for x in named.values() if x.startswith("api/")])
      if page in _NOT_SEARCHED:
        text = f"---\nnosearch: true\n---\n{text}"
      (folder / f"{page}.md").write_text(text)
  return sorted(links)


def navigation(names: Sequence[str]) -> str:
  """Returns the tables of contents, which the index lacks in the repository."""
  listed = {"index", *(x for group in _GROUPS.values() for x in group)}
  groups = {title: [*group] for title, group in _GROUPS.items()}
  for name in names:
    folder, slash, _ = name.rpartition("/")
    if name not in listed and folder != "api":
      title = folder.capitalize() if slash else "Guides"
      groups.setdefault(title, []).append(name)
  return "".join(
    _contents([x for x in members if x in names], title)
    for title, members in groups.items()
  )


def _contents(names: Sequence[str], title: str = "") -> str:
  rows = "\n".join(names)
  caption = f":caption: {title}\n" if title else ""
  return f"\n```{{toctree}}\n:hidden:\n{caption}\n{rows}\n```\n"


def _notebook(content: dict, change: Callable[[str], str]) -> dict:
  """Changes a notebook's texts, and puts its title before its first cells."""
  cells = content["cells"]
  for cell in cells:
    if cell["cell_type"] == "markdown":
      cell["source"] = change("".join(cell["source"]))
    elif "try:\n  import seedx\n" in "".join(cell["source"]):
      cell["metadata"]["tags"] = ["hide-input"]
  # The lexer of commands that begin with "!".
  content["metadata"]["language_info"]["pygments_lexer"] = "ipython3"
  title = next(x for x in cells if x["source"][:2] == "# ")
  cells.remove(title)
  cells.insert(0, title)
  return content


def _changed(
  folder: pathlib.Path,
  file: str,
  named: Mapping[str, str],
  links: set[str],
  text: str,
) -> str:
  """Returns a page's text with the links and pictures of the site.

  Args:
    folder: folder of the sources, to which images are copied.
    file: file of the repository that has the text.
    named: pages of files.
    links: receives the links to other sites.
    text: text in Markdown.
  """

  def replaced(match: re.Match[str]) -> str:
    target = _target(folder, file, named, match["target"])
    if target.startswith("http"):
      links.add(target)
    return match["before"] + target

  text = _PICTURE.sub(_both_pictures, _BADGE.sub("[Open in Colab]", text))
  parts, end = [], 0
  for code in _CODE.finditer(text):
    parts += [_TARGET.sub(replaced, text[end : code.start()]), code.group()]
    end = code.end()
  return "".join([*parts, _TARGET.sub(replaced, text[end:])])


def _both_pictures(match: re.Match[str]) -> str:
  """Returns images of the site's two themes for an HTML `picture`."""
  dark = re.sub(r'src="[^"]*"', f'src="{match["dark"]}"', match["rest"])
  return (
    f'<img class="only-light" {match["rest"]}>\n<img class="only-dark" {dark}>'
  )


def _target(
  folder: pathlib.Path, file: str, named: Mapping[str, str], target: str
) -> str:
  """Returns the target of a link on the site."""
  path, hash_, anchor = target.partition("#")
  if not path or re.match(r"[a-z]+:", path):
    return target
  absolute = (ROOT / file).parent / path
  source = os.path.relpath(absolute, ROOT)
  page, here = named.get(source), pathlib.PurePath(named[file]).parent
  if page is not None:
    suffix = {".py": ".rst"}.get(absolute.suffix, absolute.suffix)
    return os.path.relpath(page + suffix, here) + hash_ + anchor
  if not absolute.exists():
    return target  # Sphinx prints a warning.
  if absolute.suffix in _IMAGES:
    copy = folder / source
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(absolute, copy)
    return os.path.relpath(source, here)
  kind = "tree" if absolute.is_dir() else "blob"
  return f"{_ADDRESS}/{kind}/main/{source}{hash_}{anchor}"


if __name__ == "__main__":
  sys.exit(main())
