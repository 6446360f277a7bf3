#!/usr/bin/env bash
# Every relative link in a Markdown file leads to a file.
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
exit $broken
