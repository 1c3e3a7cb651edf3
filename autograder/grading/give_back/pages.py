"""Showing a student's text on nbgrader's pages, in formgrader and in feedback.

nbgrader allows HTML in Markdown, and therefore scripts. They would run in the grader's browser,
with the right to change grades. Here HTML is shown as text and not executed. A text so long that
its layout could take minutes is shown as plain text.
"""

from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape
from nbconvert.exporters.html import contextfilter
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

MOST_PROSE = 10_000  # characters that are laid out, which takes at most a second
MOST_CODE = 100_000  # ... colored


class Safe(IPythonRenderer):
    """Markdown in which HTML is text, and links lead only to the web."""

    def block_mermaidjs(self, code: str) -> str:
        return self.block_code(code)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """Show a picture, or its description if it was pasted in and then lost."""
        name = url.removeprefix("attachment:")
        if name != url and name not in self.attachments:
            return f"[picture: {text or escape(name)}]"
        return super().image(text, url, title)


@contextfilter
def prose(context: Any, source: str) -> str:
    """Replaces nbconvert's markdown2html."""
    if len(source) > MOST_PROSE:
        return plain(source)
    pasted = context.get("cell", {}).get("attachments", {})
    pictures = {quote(name): kinds for name, kinds in pasted.items()}  # as links name them
    renderer = Safe(escape=True, allow_harmful_protocols=False, attachments=pictures)
    return MarkdownWithMath(renderer=renderer).render(source)


def code(source: str, metadata: Any = None) -> str:
    """Replaces nbconvert's highlight_code."""
    if len(source) > MOST_CODE:
        return plain(source)
    return Highlight2HTML(pygments_lexer="python")(source)


def plain(source: str) -> str:
    return Markup("<pre>{}</pre>").format(source)
