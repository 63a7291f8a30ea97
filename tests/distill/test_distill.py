"""specdec-distill on a tiny champion, on the CPU: the draft learns, its folder passes the gate, ids stay the champion's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import Native
from specdec_compiler.build import build_bundle
from specdec_compiler.drafts.gate import Gate
from specdec_compiler.tiny import TinyShape, make_tiny
from specdec_distill import prompts
from specdec_distill.agree import calibration, lookups, runs
from specdec_distill.cli import main
from specdec_distill.corpus import batches, make_corpus, num_batches
from specdec_distill.objective import Measure, Objective
from specdec_distill.recipe import read_distill_recipe
from specdec_distill.run import distill, load_network, open_champion
from specdec_distill.texts import read_prompts_file
from specdec_distill.writer import Job, Writer
from specdec_runtime.faults import ArtifactError

RECIPE = """
name = "tiny-draft"
license = "CC0-1.0"
champion = "champion/recipe.toml"

[text]
seed = 5
composed = 390
self_written = 60
on_passages = 45
follow_ups = 30
held_out = 26
temperatures = [0.0, 1.0]
max_new = 48
max_prompt = 300
rows = 64

[draft]
copy = [0]
ffn = 192

[train]
seed = 3
steps = {steps}
filter_steps = {filter_steps}
keep = 0.5
tv = 0.1
batch_tokens = 4096
lr = 1.5e-3
warmup = 5
eval_every = 30
"""


def recipe_in(folder: Path, steps: int = 120, filter_steps: int = 60) -> Path:
    folder.mkdir(exist_ok=True)
    make_tiny(folder / "champion", 4, shape=TinyShape(num_layers=3), context=512)
    strata = folder / "strata"
    strata.mkdir()
    line = {
        "id": "a",
        "stratum": "chat",
        "messages": [{"role": "user", "content": "Where do the grey herons of the delta sleep?"}],
    }
    (strata / "chat.jsonl").write_text(json.dumps(line) + "\n")
    path = folder / "distill.toml"
    path.write_text(RECIPE.format(steps=steps, filter_steps=filter_steps))
    return path


def texts_of(distilled: Path, folder: Path) -> Path:
    """A folder whose text stage is done, by links."""
    work = folder / "work"
    work.mkdir()
    for path in (distilled / "work").glob("*of*"):
        (work / path.name).symlink_to(path)
    return work


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def distilled(tmp_path_factory) -> Path:
    """A folder with everything the command makes, in one go."""
    folder = tmp_path_factory.mktemp("distill")
    path = recipe_in(folder)
    arguments = [str(path), "-o", str(folder / "work"), "--device", "cpu", "--strata", str(folder / "strata")]
    assert main([*arguments, "--commit", "c0ffee"]) == 0
    return folder


def test_training_raises_acceptance(distilled, tmp_path):
    untrained = _untrained(distilled, tmp_path)
    results = json.loads((distilled / "work" / "results.json").read_text())["phases"]
    for phase in ("whole", "filtered"):
        trained = results[phase]["all"]
        assert trained["kl"] < untrained["kl"]
        assert trained["agreement"] > untrained["agreement"]
        assert trained["tokens_per_pass_3"] > untrained["tokens_per_pass_3"]


def _untrained(distilled: Path, tmp_path: Path) -> dict:
    """The same draft before its first step, on the same texts."""
    work = texts_of(distilled, tmp_path)
    text = (distilled / "distill.toml").read_text()
    text = text.replace("steps = 120", "steps = 0").replace("filter_steps = 60", "filter_steps = 0")
    (distilled / "untrained.toml").write_text(text)
    recipe = read_distill_recipe(distilled / "untrained.toml")
    result = distill(recipe, work, quiet, stage="train", device="cpu", strata=distilled / "strata")
    return result["train"]["whole"]["all"]


def test_the_folder_passes_the_gate_and_ids_stay_the_champions(distilled):
    recipe = (distilled / "champion" / "recipe.toml").read_text()
    recipe = recipe.replace('source = "draft"', 'source = "../work/draft"\nembedding = "champion"')
    path = distilled / "champion" / "trained.toml"
    path.write_text(recipe)
    bundle = distilled / "bundle"
    manifest = build_bundle(path, bundle, lambda *_: None, Gate(distilled / "strata"))
    assert manifest["draft_provenance"]["status"] == "proven"
    native = Native(bundle)
    accepted = 0
    for seed in range(6):
        prompt = np.random.default_rng(seed).integers(3, 300, 12).tolist()
        plain = native.run(prompt, 40)
        drafted = native.run(prompt, 40, "model", 3)
        assert drafted["token_ids"] == plain["token_ids"]
        accepted += drafted["speculation"]["num_accepted"]
    assert accepted > 0


def test_the_manifest_says_where_the_draft_comes_from(distilled):
    manifest = json.loads((distilled / "work" / "draft" / "provenance.json").read_text())
    assert manifest["code_commit"] == "c0ffee"
    assert manifest["generator"]["seeds"] == [5]
    kinds = {source["name"]: source["kind"] for source in manifest["prompt_sources"]}
    assert kinds["json"] == "template" and kinds["self"] == "self" and kinds["follow_up"] == "self"
    assert manifest["sample_counts"]["prompts"] == sum(s["count"] for s in manifest["prompt_sources"])
    assert set(manifest["ablation"]) == {"whole", "filtered"}


def test_the_same_seeds_give_the_same_draft(distilled, tmp_path):
    again = tmp_path / "again"
    recipe = read_distill_recipe(distilled / "distill.toml")
    distill(recipe, again, quiet, device="cpu", strata=distilled / "strata", commit="c0ffee")
    for name in ("model.safetensors", "provenance.json", "prompts.ngrams"):
        assert (again / "draft" / name).read_bytes() == (distilled / "work" / "draft" / name).read_bytes()


def test_a_stopped_run_goes_on(distilled, tmp_path, monkeypatch):
    """Stopped in the middle of training, with its checkpoint; the second call ends with the same weights."""
    work = texts_of(distilled, tmp_path)
    recipe = read_distill_recipe(distilled / "distill.toml")
    monkeypatch.setattr("specdec_distill.train.CHECKPOINT_S", 0.0)
    stops = iter(range(1000))

    def stop(line: str) -> None:
        if "step 30" in line and next(stops) == 0:
            raise KeyboardInterrupt

    options = {"stage": "train", "device": "cpu", "strata": distilled / "strata"}
    with pytest.raises(KeyboardInterrupt):
        distill(recipe, work, stop, **options)
    assert 0 < torch.load(work / "whole.pt", weights_only=True)["step"] < 120
    distill(recipe, work, stop, **options)
    ours = torch.load(work / "whole.pt", weights_only=True)["trained"]
    whole = torch.load(distilled / "work" / "whole.pt", weights_only=True)["trained"]
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    ours = (work / "log.jsonl").read_text().splitlines()
    whole = (distilled / "work" / "log.jsonl").read_text().splitlines()
    assert ours == whole


@pytest.mark.parametrize(
    ("change", "stage", "named"),
    [
        ("seed = 5", "text", "another recipe"),
        ("temperatures = [0.0, 1.0]", "text", "another recipe"),
        ("lr = 1.5e-3", "train", "another recipe"),
        ("ffn = 192", "train", "another recipe"),
        ("keep = 0.5", "export", "another recipe"),
    ],
)
def test_what_another_recipe_made_is_not_used(distilled, tmp_path, change, stage, named):
    """A changed number and the same folder: never old texts or weights under a new manifest."""
    work = tmp_path / "work"
    work.mkdir()
    for path in (distilled / "work").iterdir():
        if path.is_file():
            (work / path.name).symlink_to(path)
    name, _, value = change.partition(" = ")
    other = {"seed": "6", "temperatures": "[0.0, 0.5]", "lr": "1e-3", "ffn": "160", "keep": "0.6"}[name]
    text = (distilled / "distill.toml").read_text()
    assert text.count(f"{name} = {value}") == 1
    recipe = distilled / f"other-{name}.toml"
    recipe.write_text(text.replace(change, f"{name} = {other}"))
    with pytest.raises(ArtifactError, match=named):
        distill(
            read_distill_recipe(recipe), work, quiet, stage=stage, device="cpu", strata=distilled / "strata"
        )


def test_shares_that_are_not_of_one_whole(distilled, tmp_path):
    work = texts_of(distilled, tmp_path)
    for suffix in ("npz", "prompts"):
        (work / f"first-1of2.{suffix}").symlink_to(distilled / "work" / f"first-0of1.{suffix}")
    recipe = read_distill_recipe(distilled / "distill.toml")
    with pytest.raises(ArtifactError, match="not each of one number of shares"):
        distill(recipe, work, quiet, stage="train", device="cpu", strata=distilled / "strata")


def test_prompts_like_an_evaluation_prompt_are_left_out(distilled, tmp_path):
    """With a template's own sentence among the evaluation prompts, no text about it is written."""
    line = {"id": "x", "messages": [{"role": "user", "content": "Write the word lamp 17 times."}]}
    texts = [prompt.texts[-1] for prompt in prompts.compose(390, 5)]
    banned = next(text for text in texts if len(text.split()) >= 9)
    line["messages"][0]["content"] = banned
    strata = tmp_path / "strata"
    strata.mkdir()
    (strata / "x.jsonl").write_text(json.dumps(line) + "\n")
    distill(
        read_distill_recipe(distilled / "distill.toml"),
        tmp_path / "work",
        quiet,
        stage="text",
        device="cpu",
        strata=strata,
    )
    _, used = read_prompts_file(tmp_path / "work" / "first-0of1.prompts")
    used_texts = {text for prompt in used for text in prompt.texts}
    assert banned not in used_texts
    assert sum(text in used_texts for text in texts) > 300


def test_what_is_written_is_the_champions_own_greedy_text(distilled):
    """Rows that start at different times, with different lengths: each text is what the network says alone."""
    recipe = read_distill_recipe(distilled / "distill.toml")
    net = load_network(open_champion(recipe), "cpu")
    rng = np.random.default_rng(1)
    jobs = [Job(rng.integers(3, 300, n).tolist(), 0.0) for n in (3, 40, 17, 90, 5, 61, 8)]
    written = dict(Writer(net, 3, 256, (2,), 1).write(jobs, 40, lambda done, total: None))
    assert set(written) == set(range(len(jobs)))
    for index, text in written.items():
        ids = jobs[index].prompt + text
        said = net.logits(net.hidden(torch.tensor([ids])))[0].argmax(-1).tolist()
        assert text == said[len(jobs[index].prompt) - 1 : -1]
        assert len(text) == 40 or text[-1] == 2


def test_gradients_are_those_of_the_losses():
    """Against autograd's own derivative of KL and total variation, with and without the filter."""
    generator = torch.Generator().manual_seed(1)
    head, student, teacher, reference = (
        torch.randn(*shape, generator=generator) for shape in ((50, 8), (30, 8), (30, 8), (30, 8))
    )
    for objective in (Objective(), Objective(tv=0.4), Objective(keep=0.5), Objective(tv=1.0, keep=0.2)):
        ours = student.clone().requires_grad_()
        Measure(head).backward(ours, teacher, objective, reference)
        theirs = student.clone().requires_grad_()
        p = (teacher @ head.T).softmax(-1)

        def kl(hidden, p=p):
            return (p * (p.log() - (hidden @ head.T).log_softmax(-1))).sum(-1)

        tv = 0.5 * ((theirs @ head.T).softmax(-1) - p).abs().sum(-1)
        loss = (1 - objective.tv) * kl(theirs) + objective.tv * tv
        if objective.keep < 1:
            gap = (kl(theirs) - kl(reference)).detach()
            loss = loss[gap.argsort(descending=True)[: round(objective.keep * 30)]]
        (loss.sum() / (30 * objective.keep)).backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        ([True] * 8, 3, (8, 2, 6, 6)),
        ([False] * 4, 3, (4, 4, 0, 3)),
        ([True, False, True, True, True, True], 2, (6, 3, 3, 4)),
        ([True], 7, (1, 1, 0, 0)),
    ],
)
def test_runs_by_hand(text, k, expected):
    assert tuple(runs([text], k)) == expected


def test_confidence_by_hand():
    """Two bins of two; then shares that fall (1/2, 0/2, 2/2), pooled to 1/4 and 2/2; a bin alone."""
    assert calibration([(-2.0, False), (-1.0, True), (-0.5, True), (-0.1, True)], 2) == [
        [-1.5, 0.5],
        [-0.3, 1.0],
    ]
    falling = [(-6.0, True), (-5.0, False), (-4.0, False), (-3.0, False), (-2.0, True), (-1.0, True)]
    assert calibration(falling, 3) == [[-4.5, 0.25], [-1.5, 1.0]]
    assert calibration([(-1.0, True)], 4) == [[-1.0, 1.0]]


def test_lookups_are_judged_by_their_match():
    """By hand: "1 2" was followed by 3."""
    prompt = [1, 2, 3, 9, 1, 2]
    assert lookups([([*prompt, 3], 6)]) == {2: 1.0}
    assert lookups([([*prompt, 4], 6)]) == {2: 0.0}
    assert lookups([([*prompt, 4], 6), ([*prompt, 3], 6)]) == {2: 0.5}
    # 3 stands, and the target's own 9 comes with it; "1 2 3 9" was followed by 1: it stands, and 2 comes with it
    assert lookups([([*prompt, 3, 9, 1, 2], 6)]) == {2: 1.0, 4: 1.0}
    assert lookups([([5, 6, 7, 8], 2)]) == {}


def test_batches_cover_every_text_once_and_learn_what_was_written():
    rng = np.random.default_rng(2)
    sizes = ((10, 4), (63, 1), (200, 150), (900, 5), (7, 6))
    texts = [(rng.integers(1, 200, n).tolist(), start) for n, start in sizes]
    corpus = make_corpus(texts, ["a"] * 5, 300)
    seen: list[int] = []
    for batch in batches(corpus, 512, 1, "cpu"):
        seen += batch.texts
        rows = batch.ids.shape[1]
        for row, index in enumerate(batch.texts):
            positions = [int(i) - row * rows for i in batch.learned if row * rows <= i < (row + 1) * rows]
            text = corpus.text(index)
            assert positions == list(range(corpus.starts[index] - 1, len(text) - 1))
            assert batch.ids[row, : len(text)].tolist() == text.tolist()
    assert sorted(seen) == [0, 1, 2, 3, 4]
    whole = [batch.texts for batch in batches(corpus, 512, 1, "cpu")]
    assert len(whole) == num_batches(corpus, 512)
    assert [batch.texts for batch in batches(corpus, 512, 1, "cpu", 2)] == whole[2:]


def test_prompts_follow_from_their_seed():
    assert prompts.compose(60, 1) == prompts.compose(60, 1)
    assert prompts.compose(60, 1) != prompts.compose(60, 2)
    kinds = {prompt.kind for prompt in prompts.compose(60, 1)}
    assert kinds == set(prompts.KINDS)


@pytest.mark.parametrize(
    ("wrong", "right", "named"),
    [
        ("steps = 120", "steps = -1", "train.steps"),
        ("keep = 0.5", 'keep = "half"', "train.keep"),
        ("rows = 64", "rows = 64\nlines = 3", "text.lines"),
        ("copy = [0]", "copy = []", "draft.copy"),
        ('license = "CC0-1.0"', "", "license"),
    ],
)
def test_a_wrong_recipe_is_refused_by_key(tmp_path, wrong, right, named):
    path = tmp_path / "distill.toml"
    path.write_text(RECIPE.format(steps=120, filter_steps=60).replace(wrong, right))
    with pytest.raises(ArtifactError, match=named.replace(".", r"\.")):
        read_distill_recipe(path)


def test_layers_that_the_champion_has_not(distilled, tmp_path):
    recipe = read_distill_recipe(distilled / "distill.toml")
    wrong = dataclasses.replace(recipe, draft=dataclasses.replace(recipe.draft, copy=[7]))
    work = texts_of(distilled, tmp_path)
    with pytest.raises(ArtifactError, match="layers \\[7\\]"):
        distill(wrong, work, quiet, stage="train", device="cpu", strata=distilled / "strata")


def test_exporting_before_training_is_refused(distilled, tmp_path):
    work = texts_of(distilled, tmp_path)
    with pytest.raises(ArtifactError, match="nothing was trained here yet"):
        distill(
            read_distill_recipe(distilled / "distill.toml"),
            work,
            quiet,
            stage="export",
            device="cpu",
            strata=distilled / "strata",
        )
