#!/usr/bin/env python3
"""Checks that the top-level modules of each crate depend on each other in one direction.

Usage: scripts/layers.py [--graph]      fails if there is a cycle; with --graph it prints the modules that each module uses

It reads `use` declarations and paths that begin with `crate`, `self` or `super`. A name that the crate root re-exports counts for
the module that defines it. Unit tests (`mod tests`) may use anything.
"""
import pathlib
import re
import sys

COMMENT_OR_STRING = re.compile(r'\'"\'|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.S)
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)+")


def code_of(file):
    text = COMMENT_OR_STRING.sub("", file.read_text(encoding="utf-8"))
    return re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", text)[0]


def flatten(tree, prefix=()):
    """Yields every path of a `use` tree as a tuple of names."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    names = prefix + tuple(name.strip() for name in head.split(" as ")[0].split("::") if name.strip())
    if not brace:
        yield names
        return
    depth, part = 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part.strip():
                yield from flatten(part, names)
            part = ""
        else:
            part += char


def module_of(source, file):
    parts = file.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def absolute(module, names):
    base = {"crate": (), "self": module, "super": module[:-1]}[names[0]]
    names = names[1:]
    while names and names[0] == "super":
        base, names = base[:-1], names[1:]
    return base + names


def public_names(file):
    code = code_of(file)
    names = re.findall(r"^pub (?:struct|enum|trait|type|fn|const) (\w+)", code, re.M)
    trees = re.findall(r"^pub use ([^;]+);", code, re.M)
    return names + [path[-1] for tree in trees for path in flatten(tree)]


def read_crate(source):
    """Returns for each top-level module the modules that it uses, with one file each as an example."""
    files = {file: module_of(source, file) for file in sorted(source.rglob("*.rs"))}
    top = {module[0] for module in files.values() if module}
    defined_in = {}
    for tree in USE.findall(code_of(source / "lib.rs")):
        for path in flatten(tree):
            path = tuple(name for name in path if name not in ("crate", "self"))
            if path[-1] == "*":
                folder = source.joinpath(*path[:-1])
                file = folder / "mod.rs" if folder.is_dir() else folder.with_suffix(".rs")
                defined_in.update({name: path[0] for name in public_names(file)})
            else:
                defined_in[path[-1]] = path[0]
    graph = {name: {} for name in top}
    for file, module in files.items():
        if not module:
            continue
        code = code_of(file)
        paths = [path for tree in USE.findall(code) for path in flatten(tree)]
        paths += [tuple(path.split("::")) for path in PATH.findall(USE.sub("", code))]
        for path in paths:
            if path[0] not in ("crate", "self", "super"):
                continue
            names = absolute(module, path)
            if not names:
                continue
            used = names[0] if names[0] in top else defined_in.get(names[0])
            if used in top and used != module[0]:
                graph[module[0]].setdefault(used, file)
    return graph


def layers(graph):
    """Returns the modules in layers, lowest first, and the modules that are part of a cycle or stand above one."""
    rest, found = dict(graph), []
    while True:
        layer = sorted(name for name, uses in rest.items() if not any(used in rest for used in uses))
        if not layer:
            return found, rest
        found.append(layer)
        for name in layer:
            del rest[name]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    failed = False
    for source in sorted(root.glob("crates/*/src")):
        if not (source / "lib.rs").exists():
            continue
        graph = read_crate(source)
        found, rest = layers(graph)
        crate = source.parent.name
        if "--graph" in sys.argv:
            print(crate)
            for number, layer in enumerate(found):
                for name in layer:
                    print(f"  {number} {name} -> {' '.join(sorted(graph[name])) or '(nothing)'}")
        if rest:
            failed = True
            print(f"{crate}: a cycle among these modules:")
            for name, uses in sorted(rest.items()):
                for used, file in sorted(uses.items()):
                    if used in rest:
                        print(f"  {name} uses {used}, for example in {file.relative_to(root)}")
        else:
            print(f"{crate}: {len(graph)} top-level modules in {len(found)} layers, no cycle")
    sys.exit(failed)


main()
