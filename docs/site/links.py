"""Rewrite the links of the project's Markdown files for the site.

The site's pages have the paths that their files have in the project, so links between them stay.
"""

import re
from collections.abc import Container
from posixpath import dirname, join, normpath, relpath

CODE_OR_LINK = re.compile(r"(?ms:^```.*?^```$)|\[([^\]]*)\]\(([^)\s]+)\)")  # [text](target)
NAMED = re.compile(r"^\[([^\]]+)\]: (\S+)", re.MULTILINE)  # [name]: target
MOVED = {"README.md": "index.md", "gpt.py": "gpt.md"}


def rewritten(text: str, path: str, site: Container[str], repository: str) -> str:
    """Return Markdown whose relative links lead to the site, or else to the repository.

    path: of the text's file in the project, as are those in `site`, the files that the site has.
    Without a repository's address, a link to any other file becomes plain text.
    """

    def address(target: str) -> str:
        if ":" in target or target.startswith("#"):
            return target
        file, mark, anchor = target.partition("#")
        there = normpath(join(dirname(path), file))
        here = MOVED.get(there, there)
        if here in site:
            return f"{relpath(here, dirname(path) or '.')}{mark}{anchor}"
        return f"{repository}/blob/main/{there}{mark}{anchor}" if repository else ""

    def rewrite(link: re.Match) -> str:
        label, target = link.groups()
        if target is None:
            return link[0]
        return f"[{label}]({address(target)})" if address(target) else label

    for name, target in NAMED.findall(text):
        if address(target):
            text = text.replace(f"[{name}]: {target}", f"[{name}]: {address(target)}")
        else:
            text = re.sub(rf"^\[{re.escape(name)}\]: .*\n?", "", text, flags=re.MULTILINE)
            text = re.sub(rf"\[([^\]]*)\]\[{re.escape(name)}\]", r"\1", text)
    return CODE_OR_LINK.sub(rewrite, text)
