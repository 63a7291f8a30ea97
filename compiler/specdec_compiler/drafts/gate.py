"""May the compiler admit this draft? Its manifest must exist and hold, and no evaluation prompt may have been trained on.

Knows recipes, manifests and prompts; no weights and no kernels. Invariants: a draft with `source` is admitted only as proven, or as
untrained (a manifest of no steps and no prompts), unless the caller allows an unproven one, which is then warned of and recorded;
nothing that is missing counts as fine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specdec_runtime.faults import ArtifactError

from ..recipe import Recipe
from ..sources.locate import locate
from .ngrams import Fingerprints, overlap
from .prompts import read_hashed, read_prompts
from .provenance import ALLOW, Provenance, read_provenance
from .strata import DEFAULT, evaluation_prompts, strata_sha256

_SHOWN = 3


@dataclass(frozen=True)
class Admission:
    """What the bundle's manifest records of its draft.

    status: "none" (no draft), "champion" (the champion's own layers), "proven", "untrained" or "unproven". provenance: SHA-256 of
    provenance.json; strata: of the evaluation prompts it was compared with; None where there is none.
    """

    status: str
    provenance: str | None = None
    strata: str | None = None


@dataclass(frozen=True)
class Gate:
    """How strict a build is: which evaluation prompts, and whether an unproven draft passes with a warning."""

    strata: Path = DEFAULT
    allow_unproven: bool = False
    warn: Callable[[str], None] = lambda _: None

    def admit(self, recipe: Recipe) -> Admission:
        """Raise ArtifactError for a draft that may not pass; else say as what it passed."""
        if recipe.draft is None:
            return Admission("none")
        if recipe.draft.source is None:
            return Admission("champion")
        draft = locate(recipe.draft.source, recipe.folder)
        try:
            return self._examine(draft, locate(recipe.champion.source, recipe.folder))
        except ArtifactError as error:
            if not self.allow_unproven:
                raise
            self.warn(f"the draft is unproven: {error}")
        return Admission("unproven", _sha256_of(draft / "provenance.json"))

    def _examine(self, draft: Path, champion: Path) -> Admission:
        manifest, digest = read_provenance(draft)
        for name, sha256 in manifest.files.items():
            read_hashed(draft / name, sha256, f"files.{name}")
        _check_champion(manifest, champion, draft)
        known = read_prompts(draft, manifest.prompts_digest)
        if known.num_texts < manifest.sample_counts.prompts:
            message = f"{known.num_texts} texts, but the draft was trained on {manifest.sample_counts.prompts} prompts"
            raise ArtifactError(
                message, str(draft / manifest.prompts_digest.file), "write every prompt into it"
            )
        if manifest.training.steps == 0 and known.num_texts == 0:
            return Admission("untrained", digest)
        check_disjoint(known, evaluation_prompts(self.strata), str(draft / manifest.prompts_digest.file))
        return Admission("proven", digest, strata_sha256(self.strata))


def check_disjoint(known: Fingerprints, prompts: list[tuple[str, str]], where: str) -> None:
    """Raise ArtifactError naming evaluation prompts whose words the training prompts share."""
    shared = {}
    for name, text in prompts:
        for gram in overlap(known, text):
            shared.setdefault(name, gram)
    if shared:
        shown = "; ".join(f"{name}: {gram!r}" for name, gram in list(shared.items())[:_SHOWN])
        more = f" and {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else ""
        message = f"the draft was trained on words of {len(shared)} evaluation prompts: {shown}{more}"
        raise ArtifactError(message, where, f"train it without them, or build with {ALLOW}")


def champion_sha256(path: Path) -> str:
    """The hash of a champion: of the GGUF file; of a folder, over the names and hashes of config.json and its safetensors files."""
    if path.is_dir():
        files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
        lines = [f"{file.name} {_sha256_of(file)}\n" for file in files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    found = _sha256_of(path)
    if found is None:
        raise ArtifactError("the champion cannot be read", str(path), "correct the recipe's source")
    return found


def _check_champion(manifest: Provenance, champion: Path, draft: Path) -> None:
    found = champion_sha256(champion)
    if found != manifest.champion.sha256:
        message = (
            f"the draft was made for {manifest.champion.name} ({manifest.champion.sha256}), "
            f"the recipe's champion is another ({found})"
        )
        raise ArtifactError(
            message, f"{draft / 'provenance.json'}: $.champion.sha256", "use a draft of this champion"
        )


def _sha256_of(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
