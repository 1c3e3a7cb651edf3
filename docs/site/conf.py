"""Sphinx's settings. `python -m docs.site` writes the pages that Sphinx reads."""

import tomllib
from typing import Any

from autograder.text.reference import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["workbook"]
REPOSITORY = SETTINGS["repository"]
LAUNCH = {  # the buttons that open a lab elsewhere
    "notebook_interface": "jupyterlab",
    "colab_url": "https://colab.research.google.com",
    "binderhub_url": "https://mybinder.org",
    "jupyterhub_url": SETTINGS.get("jupyterhub", ""),
}

project = html_title = "The inference workbook"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
suppress_warnings = [
    "myst.header",  # a card's title is small, whatever comes before it
    "ref.python",  # of one name in several modules, Sphinx takes the first
]
myst_heading_anchors = 3
autodoc_inherit_docstrings = False  # PyTorch's say nothing of ours
autodoc_mock_imports = ["ray", "triton"]

nb_execution_mode = "off"  # the pages come with their outputs
nb_ipywidgets_js: dict[str, Any] = {}  # nothing is fetched from elsewhere: widgets are pictures

copybutton_selector = "div.highlight pre:not(.cell_output pre)"  # code, but not what it prints

html_theme = "sphinx_book_theme"
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,  # the sections and the exercises of a lab
    "navbar_persistent": [],  # one search field is enough
    "footer_content_items": [],
}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
if REPOSITORY:
    html_theme_options |= {
        "repository_url": REPOSITORY,
        "repository_branch": "main",
        "use_repository_button": True,
        "launch_buttons": {name: address for name, address in LAUNCH.items() if address},
    }
