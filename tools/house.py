"""Measure the tree: the size of its files, the way to the loss, untyped records, switches, cycles, checks, `--help`.

    python tools/house.py

Nothing here names a module of the package, so that numbers can be compared before and after modules move. The core is
the modules that lie directly in the package's folder, without `__main__`. How each row is counted:

- Lines of source: all lines of the `.py` files of the package.
- Files from the command to the loss: files of the package in which a function runs during `nvib train` of an NVAE,
  from `main` to the first `backward`; code that runs on import does not count. A debugger steps through these files.
- Uses of `dict[str, Any]`: as a type, anywhere.
- Subscripts by a string: `record["bleu"]` where it is read. Paths in strings: a whole string such as
  `generation/distinct/2` that begins with a part of a record of an evaluation or of its settings.
- Switches on the kind of latent or bottleneck: outside the core, `isinstance` or `case` of a class whose name ends in
  Latent or Bottleneck or is Posterior, `hasattr` of a latent or bottleneck, comparisons of `x.bottleneck` with strings.
- Package cycles: sets of packages that import each other, by every import but those for type checkers only. The core
  is one package.
- Lines that check: of the core's lines of code, without comments and docstrings, those of `raise` and `assert`; of an
  `if` that ends in `raise`; of a statement that calls a function named check; all of functions and modules named check;
  and loops and conditions around nothing but these. Names with validate, ensure and require count as check.
- CPU time of `--help`: user and system time of the process, median of three.
"""

import ast
import inspect
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = "open_nvib"
PREPARED = ROOT / "tests" / "fixtures" / "previous"
SMALL_FILE = 60
CORE = "core"

KIND = re.compile(r"\b(\w*(Latent|Bottleneck)|Posterior)\b")
KIND_VALUE = re.compile(r"\b(latent|bottleneck)(\.kind)?$")
RECORD_PATH = re.compile(
    r"(reconstruction|generation|latent|interpolation|recipe|config|settings|model|loss|optimiser|watch)(/[\w*{}]*)+"
)
CHECK = re.compile(r"_?(check|validate|ensure|require)")


def modules() -> dict[str, Path]:
    """Map the name of every module of the package to its file."""
    files = sorted((SOURCE / PACKAGE).rglob("*.py"))
    names = (".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files)
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files, strict=True)}


def parsed() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in modules().values()}


def is_core(file: Path) -> bool:
    return file.parent == SOURCE / PACKAGE and file.stem != "__main__"


def package_of(file: Path) -> str:
    return CORE if is_core(file) else file.relative_to(SOURCE / PACKAGE).parts[0]


def sizes() -> dict[Path, int]:
    return {file: len(file.read_text(encoding="utf-8").splitlines()) for file in modules().values()}


def files_to_the_loss() -> list[Path]:
    """Train on the small prepared data of the tests and stop at the first `backward`."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PREPARED / "data", Path(folder) / "data")
        shutil.copy(PREPARED / "nvae.yaml", folder)
        program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools.house import trace; trace()"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvib train failed: {done.stderr}")
    return [Path(line) for line in done.stdout.splitlines() if line.startswith(str(SOURCE))]


def trace() -> None:
    """Print the files of the package in which a function runs until the loss is there."""
    import torch

    from open_nvib.__main__ import main

    class LossIsThere(BaseException):
        """Not an Exception, which the command line might handle."""

    found: set[str] = set()
    importing = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            importing += 1 if event == "call" else -1
        is_function = code.co_flags & inspect.CO_NEWLOCALS  # the body of a class has none
        ours = code.co_filename.startswith(f"{SOURCE / PACKAGE}{os.sep}")
        if event == "call" and ours and is_function and not importing:
            found.add(code.co_filename)

    def stop(*arguments: object, **options: object) -> None:
        raise LossIsThere

    torch.Tensor.backward = stop
    sys.argv = ["nvib", "train", "--config", "nvae.yaml", "--output", "run"]
    sys.setprofile(note)
    try:
        main()
    except LossIsThere:
        sys.setprofile(None)
        print("\n".join(sorted(found)))
        return
    raise RuntimeError("nvib train ended without a loss")


def untyped() -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Count `dict[str, Any]`, subscripts by a string that are read, and paths in strings, for each package."""
    records, subscripts, paths = Counter[str](), Counter[str](), Counter[str]()
    for file, tree in parsed().items():
        for node in ast.walk(tree):
            records[package_of(file)] += isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"
            subscripts[package_of(file)] += is_read_by_name(node)
            paths[package_of(file)] += isinstance(node, ast.Constant) and bool(RECORD_PATH.fullmatch(str(node.value)))
    return +records, +subscripts, +paths


def is_read_by_name(node: ast.AST) -> bool:
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return False
    name = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return isinstance(name, str) and not ast.unparse(node.value).endswith("Literal")


def switches() -> Counter[str]:
    """Count switches on the kind of a latent or a bottleneck, for each file."""
    found = Counter[str]()
    for file, tree in parsed().items():
        if not is_core(file):
            found[str(file.relative_to(SOURCE / PACKAGE))] += sum(map(is_switch, ast.walk(tree)))
    return +found


def is_switch(node: ast.AST) -> bool:
    if isinstance(node, ast.MatchClass):
        return bool(KIND.search(ast.unparse(node.cls)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        thing, kind = map(ast.unparse, node.args)
        return (node.func.id == "isinstance" and bool(KIND.search(kind))) or (
            node.func.id == "hasattr" and bool(KIND_VALUE.search(thing))
        )
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(KIND_VALUE.search(ast.unparse(side)) for side in sides) and any(map(is_text, sides))
    return False


def is_text(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))


def package_imports() -> dict[str, set[str]]:
    """Map every package to the packages that it imports."""
    known = modules()
    found: dict[str, set[str]] = defaultdict(set)
    for file, tree in parsed().items():
        for target in imported(tree):
            while target not in known:  # from open_nvib.kl import gaussian_kl
                target = target.rpartition(".")[0]
            found[package_of(file)].add(package_of(known[target]))
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield names in the package that a module imports, but for those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        else:
            yield from imported(node)


def cycles() -> list[list[str]]:
    """Find the sets of packages that import each other, directly or through others."""
    direct = package_imports()
    reached: dict[str, set[str]] = {}
    for start in direct:
        reached[start], waiting = set(), [start]
        while waiting:
            new = direct.get(waiting.pop(), set()) - reached[start]
            reached[start] |= new
            waiting.extend(new)
    groups = {tuple(sorted(b for b in reached[a] if a in reached.get(b, ()))) for a in reached}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def checks() -> tuple[int, int]:
    """Count the lines of code of the core that check, and all of them."""
    checking = total = 0
    for file, tree in parsed().items():
        if is_core(file):
            code = code_lines(file, tree)
            total += len(code)
            checking += len(code if CHECK.match(file.stem) else code & set(check_lines(tree)))
    return checking, total


def code_lines(file: Path, tree: ast.AST) -> set[int]:
    """Numbers of the lines that are neither empty nor comments nor docstrings."""
    text = file.read_text(encoding="utf-8").splitlines()
    words = {number for node in ast.walk(tree) if is_docstring(node) for number in lines_of(node)}
    return {number for number, line in enumerate(text, 1) if line.strip()[:1] not in ("", "#")} - words


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def lines_of(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1)


def check_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.For)) and is_check(node):  # without its `else`
            yield from range(node.lineno, lines_of(node.body[-1]).stop)
        elif isinstance(node, ast.stmt) and is_check(node):
            yield from lines_of(node)


def is_check(node: ast.stmt) -> bool:
    """Whether a statement does nothing but check."""
    if isinstance(node, (ast.Raise, ast.Assert)):
        return True
    if isinstance(node, ast.FunctionDef):
        return bool(CHECK.match(node.name))
    if isinstance(node, ast.ImportFrom):
        return bool(CHECK.match((node.module or "").rpartition(".")[2]))
    if isinstance(node, (ast.If, ast.For)):
        return isinstance(node.body[-1], ast.Raise) or all(map(is_check, node.body))
    return isinstance(node, (ast.Expr, ast.Assign, ast.Return)) and any(map(is_check_call, ast.walk(node)))


def is_check_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return bool(CHECK.match(name))


def help_seconds(command: str) -> float:
    times = []
    for _ in range(3):
        with children_seconds() as spent:
            arguments = [sys.executable, "-m", PACKAGE, command, "--help"]
            subprocess.run(arguments, env=environment(), stdout=subprocess.DEVNULL, check=True)
        times.append(spent[0])
    return statistics.median(times)


@contextmanager
def children_seconds() -> Iterator[list[float]]:
    """Give the CPU seconds of the processes that end inside."""
    spent: list[float] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield spent
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def main() -> None:
    """Print the table as Markdown."""
    lines = sizes()
    small = sum(count < SMALL_FILE for count in lines.values())
    way = files_to_the_loss()
    records, subscripts, paths = untyped()
    kinds = switches()
    checking, core = checks()
    rows = [
        # equinox has 222 lines a file, torchtune 201, litgpt 300.
        ("lines of source", f"{sum(lines.values()):,}"),
        ("files", f"{len(lines)}"),
        ("lines a file", f"{sum(lines.values()) / len(lines):.0f}"),
        (f"files under {SMALL_FILE} lines", f"{small}"),
        # nanoGPT has 3.
        ("files from the command to the loss (train)", f"{len(way)}, {sum(map(is_core, way))} of them in the core"),
        ("uses of `dict[str, Any]`", f"{records.total()} ({shown(records)})"),
        ('subscripts by a string, `record["…"]`', f"{subscripts.total()} ({shown(subscripts)})"),
        ("paths in strings, `generation/distinct/2`", f"{paths.total()} ({shown(paths)})"),
        ("switches on the kind of latent or bottleneck", f"{kinds.total()} in {len(kinds)} files"),
        ("package cycles", "; ".join(" ↔ ".join(group) for group in cycles()) or "none"),
        # equinox, diffrax, torchtune, litgpt and nanoGPT have 4 to 13 %.
        ("lines that check (core)", f"{checking / core:.0%} ({checking:,} of {core:,})"),
        (
            "CPU time of `--help`",
            ", ".join(f"{name} {help_seconds(name):.1f} s" for name in ("train", "prepare", "evaluate")),
        ),
    ]
    print("| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")
    print("\nFiles from the command to the loss:", *(str(file.relative_to(SOURCE / PACKAGE)) for file in way))
    print("Switches on the kind:", shown(kinds))


if __name__ == "__main__":
    main()
