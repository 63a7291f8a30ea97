"""The runtime needs nothing but a bare interpreter, and the core does no I/O: who imports what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime_py"
PACKAGE = RUNTIME / "specdec_runtime"
NATIVE = {"backends/browser.py", "backends/native.py", "backends/wgpu.py"}  # these need more than Python
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
PURE = [name for name in FILES if name not in NATIVE]
CORE = [name for name in PURE if name.startswith(("decode/", "drafters/", "plan/")) or name == "faults.py"]

NEVER = {
    "js",
    "pyodide",
    "numpy",
    "asyncio",
    "os",
    "sys",
    "random",
    "secrets",
    "time",
    "datetime",
    "threading",
    "io",
}


def module_name(name: str) -> str:
    return ("specdec_runtime." + name.removesuffix(".py").replace("/", ".")).removesuffix(".__init__")


def imports(name: str) -> set[str]:
    """Full names of the modules a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / name).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = (
                ["specdec_runtime", *name.split("/")[:-1]][: -node.level + 1 or None] if node.level else []
            )
            found.add(".".join([*package, *([node.module] if node.module else [])]))
    return found


def test_every_module_imports_in_a_bare_interpreter():
    code = (
        "import sys, importlib; sys.path.insert(0, sys.argv[1]); before = set(sys.modules)\n"
        "for name in sys.argv[2:]: importlib.import_module(name)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    names = [module_name(name) for name in PURE]
    assert len(names) > 25
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", code, str(RUNTIME), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['specdec_runtime']"


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_no_clock_no_chance_no_device(name):
    assert not {module.partition(".")[0] for module in imports(name)} & NEVER


@pytest.mark.parametrize("name", PURE)
def test_only_the_standard_library(name):
    roots = {module.partition(".")[0] for module in imports(name)}
    assert roots - {"specdec_runtime"} <= set(sys.stdlib_module_names)


ALLOWED = {
    "faults.py": (),
    "plan/": ("plan", "faults"),
    "decode/": ("decode", "grammars", "plan", "faults"),
    "grammars/": ("grammars", "faults"),
    "masks.py": ("decode.effects", "decode.grammar", "faults"),
    "drafters/": ("decode", "plan", "faults"),
    "backends/scripted": (
        "decode.effects",
        "decode.pipeline",
        "decode.rng",
        "decode.rules",
        "decode.sampling_state",
        "decode.verify",
        "plan",
        "faults",
        "backends",
    ),
    "backends/": ("decode.effects", "plan", "faults", "backends.base"),
    "bundle.py": ("plan", "faults"),
    "drive.py": ("backends.base", "decode.effects", "masks", "faults"),
}


@pytest.mark.parametrize("name", PURE)
def test_who_may_import_whom(name):
    allowed = next((parts for start, parts in ALLOWED.items() if name.startswith(start)), None)
    if allowed is None or name == "drafters/registry.py":
        return
    for module in imports(name):
        if module.startswith("specdec_runtime"):
            inner = module.removeprefix("specdec_runtime.")
            assert any(inner == part or inner.startswith(f"{part}.") for part in allowed), (
                f"{name} imports {module}"
            )
