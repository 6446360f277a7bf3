#!/usr/bin/env python3
"""Writes the bill of materials of the binary (CycloneDX 1.5, JSON) and the licences of everything that is linked into it.

sbom.py TARGET FEATURES BILL LICENSES     for example sbom.py x86_64-unknown-linux-musl otel slidegate.cdx.json licenses.txt
"""

import datetime
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

target, features, bill_path, licenses_path = sys.argv[1:]
root = Path(__file__).resolve().parent.parent


def cargo(*arguments: str) -> str:
    return subprocess.run(["cargo", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


# The tree has exactly the packages of this build; the metadata describe them.
tree = cargo("tree", "--locked", "-p", "slidegate-server", "--features", features, "--target", target, "-e", "normal,no-proc-macro",
             "--prefix", "none", "--format", "{p}")
linked = sorted({tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()})
metadata = json.loads(cargo("metadata", "--locked", "--all-features", "--format-version", "1", "--filter-platform", target))
packages = {(package["name"], "v" + package["version"]): package for package in metadata["packages"]}
lock = tomllib.loads((root / "Cargo.lock").read_text())
checksums = {(package["name"], "v" + package["version"]): package.get("checksum") for package in lock["package"]}
rustc = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]


def component(key: tuple[str, str]) -> dict:
    package = packages[key]
    name, version = key[0], key[1].removeprefix("v")
    found = {"type": "library", "name": name, "version": version, "bom-ref": f"pkg:cargo/{name}@{version}",
             "purl": f"pkg:cargo/{name}@{version}", "description": " ".join((package["description"] or "").split())}
    if package["license"]:
        # Old packages write MIT/Apache-2.0.
        found["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    if checksums.get(key):
        found["hashes"] = [{"alg": "SHA-256", "content": checksums[key]}]
    return found


components = [component(key) for key in linked]
application = next(one for one in components if one["name"] == "slidegate-server") | {"type": "application", "name": "slidegate"}
# Linked from the toolchain.
components.append({"type": "library", "name": "rust-std", "version": rustc, "bom-ref": f"rust-std@{rustc}",
                   "licenses": [{"expression": "MIT OR Apache-2.0"}]})
if target.endswith("-musl"):
    components.append({"type": "library", "name": "musl", "bom-ref": "musl", "licenses": [{"expression": "MIT"}]})
time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
bill = {
    "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": application,
                 "properties": [{"name": "target", "value": target}, {"name": "features", "value": features}]},
    "components": [one for one in components if one["name"] != "slidegate-server"],
}
Path(bill_path).write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n")

# Each text once, with the packages that have it.
texts: dict[str, list[str]] = {}
without: list[str] = []
for key in linked:
    package = packages[key]
    if package["source"] is None:
        continue
    name = f"{key[0]} {key[1].removeprefix('v')} ({package['license'] or 'see its text'})"
    folder = Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.is_file() and re.match(r"(?i)(licen[cs]e|copying|notice|unlicense|copyright)", file.name))
    for file in files:
        texts.setdefault(file.read_text(errors="replace").strip().replace("\r\n", "\n"), []).append(name)
    if not files:
        without.append(name)
line = "=" * 100
parts = ["Slidegate contains these packages. Slidegate itself is under the licence in LICENSE.", f"The standard library of Rust {rustc}: MIT OR Apache-2.0."]
if target.endswith("-musl"):
    parts.append("musl libc: MIT, Copyright 2005-2020 Rich Felker, et al. https://musl.libc.org")
if without:
    parts.append("Packages without a file of their licence:\n" + "\n".join(without))
parts += ["\n".join(dict.fromkeys(names)) + f"\n{line}\n{text}" for text, names in texts.items()]
Path(licenses_path).write_text(f"\n\n{line}\n".join(parts) + "\n")
print(f"{bill_path}: {len(bill['components'])} components; {licenses_path}: {len(texts)} texts, {len(without)} packages without one")
