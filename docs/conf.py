"""Sphinx's settings for the site, which `python -m docs.build` makes."""

import html
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_FOLDER = Path(__file__).parent
sys.path.insert(0, str(_FOLDER.parent))

import seedx  # noqa: E402

project = "seedx"
author = "the authors of seedx"
version = release = seedx.__version__
repository = f"https://github.com/{seedx.REPOSITORY}"

extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "docs.docstrings",
  "docs.settings",
]

highlight_language = "text"
smartquotes = False  # They would turn --flag into a dash.
nitpicky = True
nitpick_ignore_regex = [
  # Types in signatures, which may be of other libraries or have no page.
  ("py:(class|obj)", ".*"),
  ("py:.*", r"(?!seedx\.).*"),
]

myst_enable_extensions = [
  "amsmath",
  "attrs_block",
  "attrs_inline",
  "colon_fence",
  "deflist",
  "dollarmath",
  "html_image",
]
myst_heading_anchors = 6
myst_links_external_new_tab = False
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the cell that installs seedx"
nb_code_prompt_hide = "Hide the cell that installs seedx"
# Commands in notebooks that continue on the next line.
suppress_warnings = ["misc.highlighting_failure"]

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 70
napoleon_numpy_docstring = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"seedx {version}"
html_static_path = [str(_FOLDER / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
  "footer_icons": [
    {"name": "Repository", "url": repository, "html": "Repository"}
  ],
}


def setup(app: Sphinx) -> None:
  """Adds formulas as MathML, which browsers draw without a script."""
  app.add_html_math_renderer("mathml", (_inline, None), (_block, None))


html_math_renderer = "mathml"


def _inline(translator: Any, node: nodes.math) -> None:
  translator.body.append(_mathml(node, as_block=False))
  raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
  text = _mathml(node, as_block=True)
  translator.body.append(f'<div class="formula">{text}</div>\n')
  raise nodes.SkipNode


def _mathml(node: nodes.Element, as_block: bool) -> str:
  # docutils lacks the first name.
  text = re.sub(r"\\dots\b", r"\\ldots", node.astext())
  try:
    return latex2mathml.tex2mathml(text, as_block=as_block)
  except Exception as error:
    logging.getLogger(__name__).warning(
      "a formula that docutils cannot convert, %s: %s",
      text,
      error,
      location=node,
    )
    return html.escape(text)
