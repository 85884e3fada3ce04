"""The settings of the site of make docs. tools/docs.py runs Sphinx with them."""

import re
from pathlib import Path

from pygments.lexer import RegexLexer, bygroups
from pygments.lexers.rust import RustLexer
from pygments.token import Comment, Generic, Literal, Number, Text
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent.parent

project = "redis-lock"
version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
html_title = f"redis-lock {version}"
extensions = ["myst_parser"]
exclude_patterns = [".doctrees"]
source_suffix = {".md": "markdown"}
# Anchors as the usual hosts make them, for headings of all depths.
myst_heading_anchors = 6
myst_enable_extensions = ["strikethrough"]
# An anchor is checked in the finished pages, by tools/docs.py. Tables of figures begin below the second depth.
suppress_warnings = ["myst.header", "myst.strikethrough"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
# The page of all index entries would be one of words without their pages' order; the search has them.
html_use_index = False
html_search_scorer = str(ROOT / "tools/docs/scorer.js")
html_favicon = "static/favicon.svg"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f57b8", "color-brand-content": "#2f57b8"},
    "dark_css_variables": {"color-brand-primary": "#8eb0ff", "color-brand-content": "#8eb0ff"},
}
highlight_language = "text"
pygments_style = "default"
pygments_dark_style = "monokai"


class Redis(RegexLexer):
    """What redis-cli shows: `alice> COMMAND`, and replies."""

    name = "redis"
    tokens = {
        "root": [
            (r"^(\w*> )([A-Z][A-Z.]*)", bygroups(Generic.Prompt, Generic.Strong)),
            (r"^\w*> ", Generic.Prompt),
            (r'"(?:\\.|[^"\\\n])*"', Literal.String),
            (r"\((?:nil|integer|waits|error|empty array|true|false|double)\)", Comment),
            (r"\b\d+\b", Number),
            (r"[^\s\"(\d]+|\s+|.", Text),
        ]
    }


class Conf(RegexLexer):
    """Lines of redis.conf, or of a crontab: comments, and the rest."""

    name = "conf"
    tokens = {"root": [(r"#.*", Comment), (r"[^#]+", Text)]}


def setup(app: Sphinx) -> None:
    """Names the languages of code blocks that Pygments does not have."""
    app.add_lexer("redis", Redis)
    app.add_lexer("conf", Conf)
    app.add_lexer("crontab", Conf)
    app.add_lexer("rust,no_run", RustLexer)
