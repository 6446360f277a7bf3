#!/usr/bin/env bash
# Builds the documentation into target/book and checks its links. Installs mdBook into target/tools if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
need python3 python3
need_mdbook
bash scripts/links.sh
rm -rf target/book
python3 scripts/book-source.py target/book-source
mdbook-mermaid install target/book-source >/dev/null 2>&1 || { echo "mdbook-mermaid install failed"; exit 1; }
mdbook build target/book-source --dest-dir "$PWD/target/book"
python3 scripts/book-source.py --check target/book
echo "open target/book/index.html"
