#!/usr/bin/env bash
# Every relative link in a Markdown file leads to a file, and every test that docs/explanation/threats.md names exists.
set -euo pipefail
cd "$(dirname "$0")/.."
broken=0
while IFS= read -r file; do
    while IFS= read -r link; do
        target=${link%%#*}
        [ -z "$target" ] && continue
        if [ ! -e "$(dirname "$file")/$target" ]; then
            echo "$file: $link leads nowhere"
            broken=1
        fi
    done < <(grep -oE '\]\([^)]+\)' "$file" | sed -E 's/^\]\((.*)\)$/\1/' | grep -vE '^[a-z]+:' || true)
done < <(git ls-files -co --exclude-standard '*.md')
for test in $(grep -oE '`[a-z0-9]+_[a-z0-9_]+`' docs/explanation/threats.md | tr -d '`' | sort -u); do
    if ! grep -rqE "fn $test\(" crates; then
        echo "docs/explanation/threats.md: there is no test $test"
        broken=1
    fi
done
exit $broken
