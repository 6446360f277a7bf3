#!/usr/bin/env bash
# Checks that every relative link in a Markdown file leads to an existing file and heading, and that every test named in
# docs/explanation/threats.md exists.
set -euo pipefail
cd "$(dirname "$0")/.."
broken=0
git ls-files -co --exclude-standard '*.md' | python3 -c '
import os, re, sys

def anchors(path):
    """Anchors of the headings of a page, as GitHub and mdBook make them."""
    text = re.sub(r"^```.*?^```", "", open(path).read(), flags=re.S | re.M)
    found, seen = set(), {}
    for heading in re.findall(r"^#+ +(.*)", text, flags=re.M):
        slug = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", slug).replace(" ", "-")
        n = seen[slug] = seen.get(slug, -1) + 1
        found.add(slug if n == 0 else f"{slug}-{n}")
    return found

broken = False
for page in sys.stdin.read().split():
    if not os.path.exists(page):
        continue
    text = re.sub(r"^( *)```.*?^\1```", "", open(page).read(), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = os.path.join(os.path.dirname(page), target) if target else page
        if not os.path.exists(path):
            print(f"{page}: {link} leads nowhere")
            broken = True
        elif anchor and path.endswith(".md") and anchor not in anchors(path):
            print(f"{page}: {link} leads to no heading")
            broken = True
sys.exit(broken)
' || broken=1
for test in $(grep -oE '`[a-z0-9]+_[a-z0-9_]+`' docs/explanation/threats.md | tr -d '`' | sort -u); do
    if ! grep -rqE "fn $test\(" crates; then
        echo "docs/explanation/threats.md: there is no test $test"
        broken=1
    fi
done
exit $broken
