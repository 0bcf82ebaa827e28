"""Hooks of MkDocs: the documents lie in a repository, and link to files beside `docs/` and to each other as there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]
BESIDE = {
    DOCS.parent / name: f"project/{name}"
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "LICENSE")
}
"""Files of the repository that become files of the site."""
NOTEBOOK = ".ipynb"
SECTIONS = ("Start", "Guides", "Concepts", "Reference", "Results", "Project")
ENTRY = re.compile(r"<!-- (::: \S+) -->.*?<!-- end -->", re.DOTALL)
"""Signatures for who reads in a checkout: the site has whole docstrings in their place."""
LINK = re.compile(r"(?<=\]\()[^)\s:#]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside `docs/`, and notebooks as pages."""
    for path, uri in BESIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for notebook in [file for file in files if file.src_uri.endswith(NOTEBOOK)]:
        files.append(File.generated(config, page_of(notebook.src_uri), content=cells(notebook.content_string)))
    return files


def page_of(uri: str) -> str:
    """The page of a notebook; any other file is its own."""
    return uri.removesuffix(NOTEBOOK) + ".md" if uri.endswith(NOTEBOOK) else uri


def cells(notebook: str) -> str:
    """The cells of a notebook and what they printed, as Markdown."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        parts += [f"```text\n{''.join(output['text'])}```" for output in cell.get("outputs", ())]
    return "\n\n".join(parts)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """The sections in the order in which they are read, behind the index."""
    nav.items.sort(key=lambda item: SECTIONS.index(item.title) + 1 if item.title in SECTIONS else 0)
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links between files of the repository lead to their places in the site, and put entries of the library in."""
    uri = page.file.src_uri
    source = next((path for path, own in BESIDE.items() if own == uri), DOCS / uri)

    def moved(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / link[0]))
        inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else None
        found = BESIDE.get(path, inside)
        return link[0] if found is None else os.path.relpath(page_of(found), os.path.dirname(uri))

    return LINK.sub(moved, ENTRY.sub(r"\1", markdown))
