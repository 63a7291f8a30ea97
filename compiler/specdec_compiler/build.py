"""From a recipe to a bundle folder: open the models, pack the weights, lower the programs, write every file, rename into place.

Nothing appears at the destination before everything is written and the plan has been read back by the strict reader.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
from specdec_models import ARCHITECTURES, RuntimeConfig, WeightFormats
from specdec_runtime.faults import ArtifactError
from specdec_runtime.plan import load_plan
from specdec_runtime.plan.schema import TOKENS_SLACK
from specdec_runtime.schedule.policy import FILE as POLICY_FILE

from . import __version__
from .cache import compiler_hash
from .drafts.gate import Admission, Gate
from .emit.lowered import Part, lower
from .emit.plan import build_plan
from .emit.rows import MAX_BINDING
from .emit.weights import VOCAB_PAD, NullWriter, ShardWriter, write_model
from .pairing import check_pair
from .recipe import Recipe, read_recipe
from .sources import ModelSpec, Quantization, first_layers, open_draft, open_source

Progress = Callable[[str, int, int], None]  # (what, done, total)
MANIFEST = "manifest.json"
MAX_SHARED_HEADS = 64  # the CPU attention keeps their scores on the stack


@dataclass(frozen=True)
class Models:
    """The opened models of a recipe; `draft` shares all of the champion's weights when `shared`, else those in `borrowed`."""

    champion: ModelSpec
    draft: ModelSpec | None
    shared: bool
    context: int

    @property
    def borrowed(self) -> tuple[str, ...]:
        """The champion's weights that a draft with weights of its own uses: the tables of ids, and the angles where they agree."""
        if self.draft is None or self.shared or self.draft.config.own_embedding:
            return ()
        mine, champion = self.draft.config, self.champion.config
        same = (mine.rope_theta, mine.head_dim) == (champion.rope_theta, champion.head_dim)
        head = () if mine.head_ids else ("head",)  # some of its rows are copied
        return ("embed", *head, *(("rope",) if same else ()))


def open_models(recipe: Recipe) -> Models:
    """Open champion and draft and check that they fit each other. Raises ArtifactError."""
    formats = Quantization(recipe.champion.quantize, recipe.champion.quantize_embedding)
    champion = open_source(recipe.champion.source, recipe.folder, formats)
    context = recipe.context_for(champion.config.context)
    _check_architecture(champion)
    _check_template(champion)
    if recipe.draft is None:
        return Models(champion, None, False, context)
    if recipe.draft.from_layers is not None:
        return Models(champion, first_layers(champion, recipe.draft.from_layers), True, context)
    assert recipe.draft.source is not None
    if recipe.draft.embedding == "champion":
        draft = open_draft(recipe.draft.source, recipe.folder, champion)
    else:
        draft = open_source(recipe.draft.source, recipe.folder, formats)
    _check_architecture(draft)
    check_pair(champion, draft, context)
    return Models(champion, draft, False, context)


def _check_template(spec: ModelSpec) -> None:
    """A template that no run could use is the builder's fault, and said here."""
    if spec.text.chat_template is None:
        return
    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(spec.text.chat_template)
    except jinja2.TemplateError as error:
        message = f"the chat template is no Jinja template: {error}"
        raise ArtifactError(message, spec.config.name, "correct the template, or take it out") from None


def _check_architecture(spec: ModelSpec) -> None:
    c = spec.config
    if c.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ArtifactError(
            f"architecture {c.architecture!r} is not supported", c.name, f"use one of: {known}"
        )
    if c.head_dim > 256:
        raise ArtifactError(
            f"head_dim is {c.head_dim}, the kernels take up to 256", c.name, "use another model"
        )
    if c.num_heads // c.num_kv_heads > MAX_SHARED_HEADS:
        message = f"{c.num_heads // c.num_kv_heads} query heads share one key/value head"
        raise ArtifactError(message, c.name, f"the kernels take up to {MAX_SHARED_HEADS}")
    query = c.num_heads * c.head_dim
    for what, value, multiple in (
        ("num_heads * head_dim", query, 32),
        ("head_dim", c.head_dim, 16),
        ("hidden", c.hidden, 32),
        ("ffn", c.ffn, 32),
    ):
        if value % multiple:
            message = f"{what} is {value}, but the kernels need a multiple of {multiple}"
            raise ArtifactError(message, c.name, "use another model")


def runtime_config(spec: ModelSpec, context: int, page_size: int, formats: dict[str, str]) -> RuntimeConfig:
    """The sizes a model runs with. `formats`: format of each stored matrix."""
    c = spec.config
    return RuntimeConfig(
        architecture=c.architecture,
        vocab_size=c.vocab_size,
        padded_vocab=-(-c.vocab_size // VOCAB_PAD) * VOCAB_PAD,
        hidden=c.hidden,
        ffn=c.ffn,
        num_layers=c.num_layers,
        num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        norm_eps=c.norm_eps,
        max_context=context,
        page_size=page_size,
        num_pages=-(-context // page_size),
        tied_embedding=c.tied_embedding,
        num_tokens=context + TOKENS_SLACK,
        formats=WeightFormats(formats),
        head_ids=c.head_ids,
        padded_head=-(-c.head_ids // VOCAB_PAD) * VOCAB_PAD,
    )


def build_bundle(
    recipe_path: Path,
    destination: Path,
    progress: Progress,
    gate: Gate | None = None,
    max_binding: int = MAX_BINDING,
) -> dict[str, Any]:
    """Build the bundle at `destination` (replaced if it is a bundle already). Returns the manifest.

    gate: what a draft of its own must have to be let in; by default a provenance that holds.
    max_binding: bytes that one binding of the GPU may have; a larger embedding or head is bound by rows, with the same results.

    Raises ArtifactError; then `destination` is as it was.
    """
    recipe = read_recipe(recipe_path)
    recipe_sha = sha256(recipe_path.read_bytes())
    destination = destination.resolve()
    _check_destination(destination)
    models = open_models(recipe)
    admission = (gate or Gate()).admit(recipe)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        work = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent))
    except OSError as error:
        raise _unwritable(destination, error) from None
    try:
        manifest = _write_bundle(recipe, recipe_sha, models, admission, work, progress, max_binding)
        work.chmod(0o755)
        _replace(work, destination)
    except OSError as error:
        raise _unwritable(destination, error) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return manifest


def _unwritable(destination: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"the bundle cannot be written: {error}", str(destination), "choose another folder")


def _check_destination(destination: Path) -> None:
    if destination == Path.cwd():
        raise ArtifactError("the destination is the current folder", str(destination), "name a folder in it")
    if destination.exists() and not (destination.is_dir() and _is_bundle_or_empty(destination)):
        message = "the destination exists and is no bundle"
        raise ArtifactError(message, str(destination), "choose another folder, or remove it")


def _is_bundle_or_empty(folder: Path) -> bool:
    """A folder whose every file is a bundle's own: nothing else is ever deleted."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if not files:
        return True
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        listed = {entry["path"] for entry in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return manifest.get("format") == "specdec-bundle" and files <= {MANIFEST, *listed}


STALE_S = 3600  # a build that long ago has ended, one way or another


def _sweep(destination: Path) -> None:
    """Remove what killed builds of this destination left beside it."""
    for path in destination.parent.glob(f".{destination.name}.*.part"):
        if time.time() - path.stat().st_mtime > STALE_S:
            shutil.rmtree(path, ignore_errors=True)


def _replace(work: Path, destination: Path) -> None:
    if not destination.exists():
        work.rename(destination)
        return
    old = work.with_name(work.name + ".old.part")
    destination.rename(old)
    try:
        work.rename(destination)
    except OSError:
        old.rename(destination)
        raise
    shutil.rmtree(old)


def _write_bundle(
    recipe: Recipe,
    recipe_sha: str,
    models: Models,
    admission: Admission,
    work: Path,
    progress: Progress,
    max_binding: int,
) -> dict[str, Any]:
    total = sum(len(spec.names()) for _, spec, _ in _weight_owners(models)) + 2
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    writer = ShardWriter(work, max_binding)
    formats = write_weights(models, writer, step)
    writer.close()
    parts = model_parts(recipe, models, formats)
    step("kernels")
    lowered = lower(parts, max_binding)
    text = models.champion.text
    files = {
        "kernels.wasm": lowered.wasm,
        "kernels.wgsl": lowered.wgsl,
        "tokenizer.json": text.tokenizer_json,
        **({POLICY_FILE: canonical_json(recipe.schedule.json())} if recipe.schedule else {}),
        **({"chat_template.jinja": text.chat_template.encode()} if text.chat_template is not None else {}),
    }
    ids = {
        "recipe": recipe_sha,
        "weights": sha256("".join(digest for _, digest in writer.shards.values()).encode()),
        "tokenizer": sha256(text.tokenizer_json),
        "chat_template": sha256(text.chat_template.encode()) if text.chat_template is not None else None,
        "kernels": compiler_hash(),
    }
    names = {"target": models.champion.config.name} | (
        {"draft": models.draft.config.name} if models.draft else {}
    )
    about = {
        "bos_id": text.bos_id,
        "add_bos": text.add_bos,
        "eos_ids": list(text.eos_ids),
        "special_ids": list(text.special_ids),
    }
    plan = build_plan(recipe.name, ids, about, parts, names, lowered, writer.arenas, writer.tensors)
    files["plan.json"] = canonical_json(plan)
    load_plan(files["plan.json"])
    for path, data in files.items():
        (work / path).write_bytes(data)
    manifest = _manifest(recipe, admission, writer, files)
    (work / MANIFEST).write_bytes(canonical_json(manifest))
    step("manifest")
    return manifest


def write_weights(
    models: Models, writer: ShardWriter | NullWriter, step: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """Write the weights of all models; -> by role of the model that owns them, the format of each matrix."""
    return {
        role: write_model(spec, role, models.context, writer, step, borrowed)
        for role, spec, borrowed in _weight_owners(models)
    }


def _weight_owners(models: Models) -> list[tuple[str, ModelSpec, tuple[str, ...]]]:
    """(role, model, what it borrows) of those whose weights are stored: a draft from the champion's layers stores none."""
    owners: list[tuple[str, ModelSpec, tuple[str, ...]]] = [("target", models.champion, ())]
    if models.draft is not None and not models.shared:
        owners.append(("draft", models.draft, models.borrowed))
    return owners


def model_parts(recipe: Recipe, models: Models, formats: dict[str, dict[str, str]]) -> tuple[Part, ...]:
    """The pair as lowered.py takes it; `formats`: by role of the model that owns the weights, then by matrix."""
    size = recipe.pages.size
    target = runtime_config(models.champion, models.context, size, formats["target"])
    if models.draft is None:
        return (Part("target", "target", target),)
    weights = "target" if models.shared else "draft"
    kept = _kept_formats(formats[weights], models.draft.config.num_layers)
    kept |= {name: formats["target"][name] for name in models.borrowed if name in formats["target"]}
    return (
        Part("target", "target", target),
        Part("draft", weights, runtime_config(models.draft, models.context, size, kept), models.borrowed),
    )


def _kept_formats(formats: dict[str, str], num_layers: int) -> dict[str, str]:
    """The formats of the matrices a model of so many layers has."""
    return {
        k: v for k, v in formats.items() if not k.startswith("layers.") or int(k.split(".")[1]) < num_layers
    }


def _manifest(
    recipe: Recipe, admission: Admission, writer: ShardWriter, files: dict[str, bytes]
) -> dict[str, Any]:
    entries = [
        {"path": path, "bytes": size, "sha256": digest} for path, (size, digest) in writer.shards.items()
    ]
    entries += [{"path": path, "bytes": len(data), "sha256": sha256(data)} for path, data in files.items()]
    head = {"format": "specdec-bundle", "version": 1, "name": recipe.name, "license": recipe.license}
    head["draft_provenance"] = asdict(admission)
    return {**head, "compiler": __version__, "files": sorted(entries, key=lambda entry: entry["path"])}


def canonical_json(data: Any) -> bytes:
    """Sorted keys, no spaces, ASCII: the same data gives the same bytes."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()
