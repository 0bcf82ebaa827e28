"""Hooks of MkDocs: the documents lie in a repository, and link to files beside `docs/` and to each other as there."""

from __future__ import annotations

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
SECTIONS = ("Start", "Guides", "Concepts", "Reference", "Results", "Project")
ENTRY = re.compile(r"<!-- (::: \S+) -->.*?<!-- end -->", re.DOTALL)
"""Signatures for who reads in a checkout: the site has whole docstrings in their place."""
LINK = re.compile(r"(?<=\]\()[^)\s:#]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies beside `docs/`."""
    for path, uri in BESIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


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
        return link[0] if found is None else os.path.relpath(found, os.path.dirname(uri))

    return LINK.sub(moved, ENTRY.sub(r"\1", markdown))
