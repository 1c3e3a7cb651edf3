"""A student's prose and code on nbgrader's pages: laid out, never obeyed."""

import pytest

from autograder.grading.give_back.pages import MOST_CODE, MOST_PROSE, code, prose


def laid_out(source: str, **cell: dict) -> str:
    return prose({"cell": cell}, source)


def test_prose_is_laid_out():
    page = laid_out("# Title\n\n*Both*, see [there](https://example.org) and `x < y`.\n\n$a < b$")
    assert "<em>Both</em>" in page
    assert '<a href="https://example.org">there</a>' in page
    assert "<code>x &lt; y</code>" in page
    assert "$a &lt; b$" in page


@pytest.mark.parametrize(
    "attack",
    [
        "<script>attack()</script>",
        "a <img src=x onerror=attack()> b",
        "<div onclick='attack()'>\n\nb\n\n</div>",
        "[a](javascript:attack())",
        "[a](JaVaScRiPt:attack())",
        "[a][b]\n\n[b]: javascript:attack()",
        "<javascript:attack()>",
        "![a](javascript:attack())",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        '![a"onerror="attack()](x)',
        '![a](x "b" onerror=attack()")',
        "```mermaid\n<script>attack()</script>\n```",
        "```mermaid graph\n<script>attack()</script>\n```",
        '```python"><script>attack()</script>\nx\n```',
        "```<script>\nx\n```",
        "$<script>attack()</script>$",
        "$$<script>attack()</script>$$",
        "\\begin{<script>}attack()\\end{<script>}",
        "# <script>attack()</script>",
        "| <script>attack()</script> |\n|---|\n| <img src=x onerror=attack()> |",
        "![<script>attack()</script>](attachment:x)",
        "![](attachment:<script>attack()</script>)",
    ],
)
def test_nothing_in_prose_is_obeyed(attack):
    page = laid_out(attack).lower()
    for tag in ("<script", "<img src=x onerror", "<div onclick", 'onerror="attack', "<svg"):
        assert tag not in page
    for link in ('href="javascript', 'src="javascript', 'href="data:'):
        assert link not in page


def test_pasted_pictures_are_shown_and_lost_ones_are_named():
    pictures = {name: {"image/png": "iVBORw0KGgo="} for name in ("a.png", "my picture.png")}
    for link in ("attachment:a.png", "attachment:my%20picture.png", "<attachment:my picture.png>"):
        page = laid_out(f"![my picture]({link})", attachments=pictures)
        assert 'src="data:image/png;base64,iVBORw0KGgo="' in page
    assert laid_out("![a < b](attachment:b.png)") == "<p>[picture: a &lt; b]</p>\n"
    assert laid_out("![](attachment:b&c.png)") == "<p>[picture: b&amp;c.png]</p>\n"


def test_code_is_colored():
    assert '<span class="k">def</span>' in code("def f(x): return x < 1")
    assert "&lt;" in code("x < 1")


@pytest.mark.parametrize(("show", "most"), [(laid_out, MOST_PROSE), (code, MOST_CODE)])
def test_a_very_long_text_is_shown_plainly(show, most):
    text = "<b>" + "x" * most
    assert show(text) == f"<pre>&lt;b&gt;{'x' * most}</pre>"
