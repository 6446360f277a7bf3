#!/usr/bin/env python3
"""Compares the public items of the library with docs/public-api.txt, so that a review shows every change of the API.

    scripts/public-api.py            fails and prints the difference if the file is out of date
    scripts/public-api.py --write    writes the file

Reads the output of `cargo doc --workspace --all-features --no-deps`.
"""
import difflib
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
page = root / "target/doc/slidegate/all.html"
listed = root / "docs/public-api.txt"

if not page.exists():
    sys.exit(f"{page.relative_to(root)} is missing: run `cargo doc --workspace --all-features --no-deps` first")
items = re.findall(r'<li><a href="(?:[a-z_]+/)*([a-z]+)\.[^"]+">([^<]+)</a></li>', page.read_text())
lines = sorted(f"{name} ({kind})\n" for kind, name in items)
if not lines:
    sys.exit(f"{page.relative_to(root)} lists no item: has the format of rustdoc changed?")
if "--write" in sys.argv:
    listed.write_text("".join(lines))
before = listed.read_text().splitlines(keepends=True) if listed.exists() else []
if before != lines:
    sys.stdout.writelines(difflib.unified_diff(before, lines, "docs/public-api.txt", "the library"))
    sys.exit("The public API has changed. If that is intended, run `scripts/public-api.py --write`.")
print(f"slidegate: {len(lines)} public items")
