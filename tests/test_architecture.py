"""How the package is built, by its import statements: what the core needs, layers, cycles; and the map of it."""

import ast
import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "open_nvib"
CORE_NEEDS = {"torch", "jaxtyping", "lazy_loader"}
LAYERS = ("core", "store", "text", "evaluation", "experiments", "pretrained", "report", "app", "demo", "cli")
"""A layer imports only what comes before it."""
STORE_DOES_WITHOUT = {"torch", "transformers"}
ENTRY_POINTS = {PACKAGE / "__main__.py", PACKAGE / "__init__.pyi"}
"""The command line, and the public names, which are imported on first use; nothing of ours imports these files."""


def layer_of(file: Path) -> str:
    """The package in which a file of src/open_nvib lies, "core" for those beside `__init__.py`."""
    return file.relative_to(PACKAGE).parts[0] if file.parent != PACKAGE else "core"


def imports_of(file: Path) -> set[str]:
    """Full names of the modules that a file imports, inside functions as well, but not for the type checker alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for statement in branch.body
        for node in ast.walk(statement)
    }
    parents = ("open_nvib", *file.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in skipped:
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            base = [*parents[: len(parents) - node.level + 1]] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" for alias in node.names} if name == "open_nvib" else {name}
    return found


def sources() -> list[Path]:
    return sorted(file for suffix in ("*.py", "*.pyi") for file in PACKAGE.rglob(suffix))


def layers_imported(file: Path) -> set[str]:
    """Other layers that a file imports."""
    ours = {name.split(".")[1] for name in imports_of(file) if name.startswith("open_nvib.")}
    return {name if (PACKAGE / name).is_dir() else "core" for name in ours} - {layer_of(file)}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py*")), ids=lambda file: file.name)
def test_the_core_needs_torch_and_nothing_of_ours(file):
    if file in ENTRY_POINTS:
        return
    packages = {name.split(".")[0] for name in imports_of(file)} - set(sys.stdlib_module_names)
    assert packages <= CORE_NEEDS | {"open_nvib"}
    assert not layers_imported(file)


def test_the_store_imports_no_torch():
    files = (PACKAGE / "store").rglob("*.py")
    packages = {file.name: {name.split(".")[0] for name in imports_of(file)} & STORE_DOES_WITHOUT for file in files}
    assert not {name: found for name, found in packages.items() if found}


def test_layers_point_one_way():
    assert {layer_of(file) for file in sources()} == set(LAYERS)
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for file in sources()
        if file not in ENTRY_POINTS
        for other in sorted(layers_imported(file))
        if LAYERS.index(other) > LAYERS.index(layer_of(file))
    ]
    assert not wrong


def test_there_are_no_cycles_between_layers():
    graph: dict[str, set[str]] = {layer: set() for layer in LAYERS}
    for file in sources():
        if file not in ENTRY_POINTS:
            graph[layer_of(file)] |= layers_imported(file)
    assert_no_cycle(graph)


def test_there_are_no_cycles_inside_a_layer():
    """Between its packages, such as text.data and text.model, and between modules that lie beside each other."""
    graph: dict[str, set[str]] = {}
    for file in sources():
        ours = {name for name in imports_of(file) if name.startswith(f"open_nvib.{layer_of(file)}.")}
        graph.setdefault(room_of(file), set()).update({".".join(name.split(".")[:3]) for name in ours})
    assert_no_cycle({room: others - {room} for room, others in graph.items()})


def assert_no_cycle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle: {' → '.join(error.args[1])}")


def room_of(file: Path) -> str:
    """The package inside a layer, or the module where a layer has no packages: `open_nvib.text.data`."""
    parts = ("open_nvib", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(part for part in parts[:3] if part != "__init__")


def test_the_map_of_contributing_names_every_package_and_module():
    """The map is a fenced block of `name.py — what it is` and `name/ — what it is`, indented by two for each folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^```text\nsrc/open_nvib/[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block, "CONTRIBUTING.md has no fenced text block that begins with src/open_nvib/"
    folders: list[str] = []
    named = []
    for line in block[1].splitlines():
        found = re.fullmatch(r"( +)([\w.]+/?) +— \S.*", line)
        if not line.startswith(" "):
            break  # what is beside src/
        assert found, f"expected 'name.py — what it is', indented by two for each folder: {line!r}"
        folders = [*folders[: len(found[1]) // 2 - 1], found[2].rstrip("/")]
        named.append("/".join(folders) + "/" * found[2].endswith("/"))
    modules = [file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
    packages = [file.parent.relative_to(PACKAGE) for file in PACKAGE.rglob("__init__.py") if file.parent != PACKAGE]
    expected = {file.as_posix() for file in modules} | {f"{folder.as_posix()}/" for folder in packages}
    assert sorted(named) == sorted(expected)
