"""HTML from Jinja2 templates, which are files beside the modules that fill them.

All text is escaped that a template doesn't mark as safe. A value that is missing is an error.
"""

import html
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: Path, **values: Any) -> str:
    return environment(template.parent).get_template(template.name).render(values)


@cache
def environment(folder: Path) -> "Environment":
    # Every kernel imports this module, also one that shows nothing: Jinja2 takes 0.1 s.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
    )
    made.filters["code_marked"] = code_marked
    return made


def code_marked(text: str) -> "Markup":
    """Escape a text, and mark what is between backticks as code."""
    from markupsafe import Markup

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)))
