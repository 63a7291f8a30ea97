"""Where a source lies: a path relative to the recipe, or a file inside an installed Python package.

Knows no format. Invariant: no package is imported; its list of installed files is read.
"""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from specdec_runtime.faults import ArtifactError

_PREFIX = "package:"


def locate(source: str, folder: Path) -> Path:
    """The path that a recipe's source means; folder is where the recipe lies.

    "package:NAME/FILE" is a file of the installed distribution NAME: the one whose path is FILE or ends in
    "/FILE". Raises ArtifactError: no such path, package or file, more than one such file.
    """
    if source.startswith(_PREFIX):
        return _in_package(source)
    try:
        path = folder / Path(source).expanduser()
        found = path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # no such user; a name the system does not take
        raise ArtifactError(f"the path cannot be used: {error}", f"source {source!r}", "correct it") from None
    if not found:
        raise ArtifactError(
            f"there is nothing at {path}", f"source {source!r}", "correct the recipe's source"
        )
    return path


def _in_package(source: str) -> Path:
    where = f"source {source!r}"
    name, _, wanted = source[len(_PREFIX) :].partition("/")
    if not name or not wanted:
        raise ArtifactError("the source names no file in a package", where, "write package:NAME/FILE")
    try:
        found = _files(distribution(name), wanted)
    except (PackageNotFoundError, ValueError):
        message = f"the Python package {name} is not installed"
        raise ArtifactError(message, where, f"install it: pip install {name}") from None
    if not found:
        message = f"the package {name} has no installed file {wanted}"
        raise ArtifactError(
            message, where, f"name a file of the package, or reinstall it: pip install {name}"
        )
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise ArtifactError(f"{len(found)} files match: {names}", where, "give more of the file's path")
    return found[0]


def _files(package: Distribution, wanted: str) -> list[Path]:
    listed = package.files or []
    paths = [Path(str(f.locate())) for f in listed if f"/{f.as_posix()}".endswith(f"/{wanted}")]
    return [path for path in paths if path.exists()]
