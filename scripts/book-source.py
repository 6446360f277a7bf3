#!/usr/bin/env python3
"""Writes the source of the book: the pages of docs/, with links that stay within the book.

book-source.py FOLDER          writes the source of the book into a folder
book-source.py --check FOLDER  checks that every local link of the built book leads to a file, and to a heading in it

On GitHub a page may link to a file outside of docs/. In the book, ARCHITECTURE.md, SECURITY.md and README.zh-CN.md are pages, and
other files are copied beside the pages.
"""

import html
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

root = Path(__file__).resolve().parent.parent

# Files outside of docs/ that are pages of the book.
PAGES = {
    "README.md": "README.md",
    "README.zh-CN.md": "README.zh-CN.md",
    "ARCHITECTURE.md": "explanation/architecture.md",
    "SECURITY.md": "explanation/security.md",
}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def place(path: Path, book: Path) -> str | None:
    """Path in the book of a file of the repository. Copies the file if it is not a page."""
    name = path.relative_to(root).as_posix()
    if name in PAGES:
        return PAGES[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if not path.is_file():
        return None
    # Browsers show text files.
    copy = f"files/{name.removesuffix('.md')}.txt"
    (book / copy).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, book / copy)
    return copy


def write(source: Path, page: str, book: Path) -> None:
    """Writes one page of the book."""

    def link(match: re.Match) -> str:
        target, _, anchor = match[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = place((source.parent / target).resolve(), book)
        if path is None:
            # A link to a folder becomes the name of the folder.
            return "]()"
        if page != "SUMMARY.md":
            # mdBook writes a README.md as index.html, and does not change links to it.
            path = re.sub(r"(^|/)README\.md$", r"\1index.md", path)
        relative = os.path.relpath(path, os.path.dirname(page) or ".")
        return f"]({relative}{'#' + anchor if anchor else ''})"

    text = LINK.sub(link, source.read_text())
    text = re.sub(r"(?<!!)\[([^\]]*)\]\(\)", r"\1", text)
    (book / page).write_text(text)


def write_book(book: Path) -> None:
    shutil.rmtree(book, ignore_errors=True)
    shutil.copytree(root / "docs", book)
    text = (book / "book.toml").read_text()
    (book / "book.toml").write_text(text.replace('build-dir = "../target/book"\n', ""))
    for source in (root / "docs").rglob("*.md"):
        write(source, source.relative_to(root / "docs").as_posix(), book)
    for name, page in PAGES.items():
        if name != "README.md":
            write(root / name, page, book)


def check(book: Path) -> int:
    """Number of local links of the built book that lead to no file or to no anchor."""
    pages = {page: page.read_text() for page in book.rglob("*.html")}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    broken = 0
    for page, text in pages.items():
        if page.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)', text):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = unquote(html.unescape(link)).partition("#")
            path = (page.parent / target.partition("?")[0]).resolve() if target else page
            if not path.exists():
                print(f"{page}: {link} leads nowhere")
                broken += 1
            elif anchor and path in anchors and anchor not in anchors[path]:
                print(f"{page}: {link} leads to no heading")
                broken += 1
    return broken


if sys.argv[1] == "--check":
    sys.exit(check(Path(sys.argv[2]).resolve()) > 0)
write_book(Path(sys.argv[1]).resolve())
