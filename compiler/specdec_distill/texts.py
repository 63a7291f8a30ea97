"""Stage 1: the champion writes the training text.

Four kinds of prompts: composed ones; some whose user turn the champion writes itself (given the chat form up to where a user speaks,
after Magpie, Xu et al. 2024); then, about passages it wrote, and second turns. Each stage of writing is a file, so a stopped run goes
on with the next one. Invariant: nothing comes from outside but the templates and word lists of this package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from specdec_compiler.drafts import overlap
from specdec_compiler.drafts.ngrams import Fingerprints
from specdec_compiler.sources import ModelSpec
from specdec_runtime.faults import ArtifactError
from specdec_runtime.plan import PlanText
from specdec_tools.text import BundleText

from .corpus import Corpus, join, load_corpus, make_corpus
from .network import Llama
from .prompts import Message, Prompt, compose, compose_on, follow_up
from .recipe import TextRecipe
from .writer import Job, Writer

Say = Callable[[str], None]
SELF_TEMPERATURE = 0.9  # of user turns that the champion writes


class Speech:
    """The champion's tokenizer and chat form."""

    def __init__(self, spec: ModelSpec) -> None:
        text = spec.text
        if text.chat_template is None:
            raise ArtifactError(
                "the champion has no chat template", spec.config.name, "distillation writes chats"
            )
        plan = PlanText(text.bos_id, text.add_bos, text.eos_ids, text.special_ids)
        self._text = BundleText(text.tokenizer_json.decode("utf-8"), text.chat_template, plan)
        self.end_ids = text.eos_ids

    def chat(self, messages: list[Message]) -> list[int]:
        """The ids of a chat up to where the champion answers."""
        return self._text.encode(self._text.render(messages))

    def user_turn(self) -> list[int]:
        """The ids of a chat up to where a user speaks."""
        mark = "\x1a"
        before, found, _ = self._text.render([{"role": "user", "content": mark}]).partition(mark)
        if not found:
            raise ArtifactError(
                "the chat template drops the user's text", "chat_template", "use another champion"
            )
        return self._text.encode(before)

    def words(self, ids: list[int]) -> str:
        return self._text.decode([token_id for token_id in ids if token_id not in self.end_ids])


@dataclass
class Desk:
    """What writing needs: network, speech, recipe, a folder for the stages, and a voice."""

    net: Llama
    speech: Speech
    recipe: TextRecipe
    folder: Path
    say: Say
    held_apart: Fingerprints  # of the evaluation prompts: a prompt that shares words with one is not used
    champion_sha256: str
    share: int = 0
    shares: int = 1

    @property
    def identity(self) -> str:
        """What a stage's files were made from: recipe, share, champion and evaluation prompts, in one hash."""
        held_apart = hashlib.sha256(self.held_apart.hashes.tobytes()).hexdigest()
        made_from = [asdict(self.recipe), self.share, self.shares, self.champion_sha256, held_apart]
        return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()

    @property
    def seed(self) -> int:
        return self.recipe.seed + self.share

    def part(self, count: int) -> int:
        return count // self.shares

    def write(self, jobs: list[Job], name: str, max_new: int) -> dict[int, list[int]]:
        """What the champion wrote, by index of the job (a few may be missing: see Writer)."""
        rows = min(self.recipe.rows, max(1, len(jobs)))
        max_len = -(-(self.recipe.max_prompt + max_new + 64) // 128) * 128
        writer = Writer(self.net, rows, max_len, self.speech.end_ids, self.seed)
        last = [0.0]

        def report(done: int, total: int) -> None:
            if done / total - last[0] >= 0.1:
                last[0] = done / total
                self.say(f"{name}: {done} of {total} texts")

        return dict(writer.write(jobs, max_new, report))


Written = tuple[Corpus, list[Prompt]]  # texts, and the prompt of each


def training_text(desk: Desk) -> Corpus:
    """All training texts of this share, from the stages' files where they exist."""
    first, prompts = _stage(desk, "first", lambda: _first_turns(desk))
    if desk.part(desk.recipe.on_passages) + desk.part(desk.recipe.follow_ups) == 0:
        return first
    second, _ = _stage(desk, "second", lambda: _second_turns(desk, first, prompts))
    return join([first, second])


def held_out_text(desk: Desk) -> Corpus:
    """Texts of another seed, written at temperature 0."""

    def make() -> Written:
        prompts = compose(desk.recipe.held_out, desk.recipe.seed + 10_000)
        return _answers(desk, prompts, [0.0], "held out")

    return _stage(desk, "held-out", make)[0]


def _stage(desk: Desk, name: str, make: Callable[[], Written]) -> Written:
    """A corpus and its prompts from the stage's files, or made and saved. Raises ArtifactError for files made from something else."""
    stem = f"{name}-{desk.share}of{desk.shares}"
    corpus_path, prompts_path = desk.folder / f"{stem}.npz", desk.folder / f"{stem}.prompts"
    if not corpus_path.exists() or not prompts_path.exists():
        corpus, prompts = make()
        write_prompts_file(prompts_path, desk.identity, prompts)
        corpus.save(corpus_path)
        desk.say(f"{name}: {len(corpus)} texts, {corpus.num_learned} tokens written by the champion")
    identity, prompts = read_prompts_file(prompts_path)
    if identity != desk.identity:
        message = "the texts here are of another recipe, champion, share or set of evaluation prompts"
        raise ArtifactError(message, str(prompts_path), "use another folder, or remove what is in it")
    return load_corpus(corpus_path), prompts


def stage_of(path: Path) -> tuple[str, int, int]:
    """(stage, share, number of shares) of one of its files."""
    stage, _, share = path.stem.rpartition("-")
    index, _, total = share.partition("of")
    return stage, int(index), int(total)


def training_files(folder: Path, suffix: str) -> list[Path]:
    """The stages' files of that suffix, all shares', without the texts held out."""
    return [path for path in sorted(folder.glob(f"*of*{suffix}")) if stage_of(path)[0] != "held-out"]


def write_prompts_file(path: Path, identity: str, prompts: list[Prompt]) -> None:
    """The prompts of a stage: what they were made from, then a JSON line a prompt."""
    lines = [json.dumps({"made_from": identity}), *(json.dumps(asdict(prompt)) for prompt in prompts)]
    path.write_text("\n".join(lines) + "\n", "ascii")


def read_prompts_file(path: Path) -> tuple[str, list[Prompt]]:
    """What a stage was made from, and its prompts."""
    first, *lines = path.read_text("ascii").splitlines()
    return json.loads(first)["made_from"], [Prompt(**json.loads(line)) for line in lines]


def _first_turns(desk: Desk) -> Written:
    composed = compose(desk.part(desk.recipe.composed), desk.seed)
    before = desk.speech.user_turn()
    count = desk.part(desk.recipe.self_written)
    turns = desk.write([Job(before, SELF_TEMPERATURE)] * count, "user turns", 96)
    asked = [
        Prompt("self", [{"role": "user", "content": desk.speech.words(turns[i]).strip()}])
        for i in sorted(turns)
    ]
    prompts = [*composed, *(prompt for prompt in asked if prompt.messages[0]["content"])]
    return _answers(desk, prompts, desk.recipe.temperatures, "first turns")


def _second_turns(desk: Desk, first: Corpus, asked: list[Prompt]) -> Written:
    rng = Random(f"second {desk.seed}")
    answers = [
        desk.speech.words(first.text(i)[first.starts[i] :].tolist()).strip() for i in range(len(first))
    ]
    passages = [
        text for text, kind in zip(answers, first.kinds, strict=True) if kind in _PASSAGES and len(text) > 80
    ]
    prompts = compose_on(passages, desk.part(desk.recipe.on_passages), desk.seed) if passages else []
    for index in rng.sample(range(len(first)), min(len(first), desk.part(desk.recipe.follow_ups))):
        prompts.append(follow_up(asked[index], answers[index][:800], rng))
    return _answers(desk, prompts, desk.recipe.temperatures, "second turns")


_PASSAGES = ("explain", "create", "chat", "self", "list")


def _answers(desk: Desk, prompts: list[Prompt], temperatures: list[float], name: str) -> Written:
    """The champion's answers to the prompts; prompts too long, or like an evaluation prompt, are left out."""
    rng = Random(f"temperatures {desk.seed} {name}")
    chats = [desk.speech.chat(prompt.messages) for prompt in prompts]
    kept = [
        index
        for index, ids in enumerate(chats)
        if len(ids) <= desk.recipe.max_prompt
        and not any(overlap(desk.held_apart, text) for text in prompts[index].texts)
    ]
    jobs = [Job(chats[index], rng.choice(temperatures)) for index in kept]
    written = desk.write(jobs, name, desk.recipe.max_new)
    asked = [prompts[kept[job]] for job in sorted(written)]
    texts = [(jobs[job].prompt + written[job], len(jobs[job].prompt)) for job in sorted(written)]
    kinds = [prompt.kind for prompt in asked]
    return make_corpus(texts, kinds, desk.net.config.vocab_size), asked
