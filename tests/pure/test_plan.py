"""The plan's reader, checks and writer: shared fixtures, round trip, and fuzzing by small damage."""

import copy
import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_factory import load_made, make_plan
from specdec_runtime.faults import ArtifactError
from specdec_runtime.plan import check_plan, dump_plan, load_plan, read_plan, schema
from specdec_runtime.plan.schema import program_widths

FIXTURES = Path(__file__).parents[1] / "fixtures" / "plan"
INDEX = json.loads((FIXTURES / "index.json").read_text())


@pytest.mark.parametrize("name", INDEX["good"])
def test_good_plan_round_trips_to_the_same_bytes(name):
    text = (FIXTURES / name).read_text()
    assert dump_plan(load_plan(text)) == text


@pytest.mark.parametrize("case", INDEX["bad"], ids=lambda case: case["file"])
def test_bad_plan_is_refused_at_its_path(case):
    text = (FIXTURES / case["file"]).read_text()
    with pytest.raises(ArtifactError) as caught:
        load_plan(text)
    assert caught.value.where == case["path"]
    assert caught.value.action


@pytest.mark.parametrize("case", INDEX["bad"], ids=lambda case: case["file"])
def test_stage_of_a_bad_plan(case):
    """A fault of meaning is well formed: the reader alone lets it pass."""
    text = (FIXTURES / case["file"]).read_text()
    if case["stage"] == "check":
        read_plan(text)
    else:
        with pytest.raises(ArtifactError):
            read_plan(text)


def test_fixture_files_are_what_make_writes():
    spec = importlib.util.spec_from_file_location("make_plan_fixtures", FIXTURES / "make.py")
    assert spec and spec.loader
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    committed = {
        path.relative_to(FIXTURES).as_posix(): path.read_text() for path in FIXTURES.glob("**/*.json")
    }
    assert committed == make.files()


@pytest.mark.parametrize(
    "text", ["", "{", '"plan"', "null", "[" * 100_000, "\x00", '{"format":1,"format":1}']
)
def test_what_is_not_a_plan_at_all(text):
    with pytest.raises(ArtifactError):
        load_plan(text)


def test_bytes_that_are_no_text():
    with pytest.raises(ArtifactError):
        load_plan(b"\xff\xfe\xff")


def test_a_key_twice_is_refused():
    text = json.dumps(make_plan())
    with pytest.raises(ArtifactError, match="twice"):
        load_plan(text[:-1] + ', "name": "other"}')


def test_a_plan_is_frozen():
    plan = load_made()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_lookups_by_name():
    plan = load_made(targets=("cpu", "gpu"), draft={})
    assert plan.target("gpu").module == "kernels.wgsl"
    assert plan.target_model.role == "target"
    assert plan.draft_model is not None and plan.draft_model.role == "draft"
    assert plan.target("cpu").program("draft.step_2").width == 2
    assert plan.target("cpu").tensor("target.out").shape == (32, 2)
    assert plan.target("cpu").tensor("draft.stats").dtype == "float32"
    with pytest.raises(KeyError):
        plan.target("npu")
    assert load_made().draft_model is None


def test_programs_by_role():
    plan = load_made(draft={})
    assert plan.draft_model
    judged = {
        "draft.draw_1": 1,
        "draft.draw_2": 2,
        "draft.judge": 8,
        "draft.judge_filter": 8,
        "draft.follow": 8,
    }
    steps = {f"draft.{kind}_{width}": width for kind in ("step", "sample", "measure") for width in (1, 2)}
    assert program_widths(plan.draft_model) == {"draft.prefill": 8, **steps, "draft.accept": 8, **judged}
    names = program_widths(plan.target_model)
    assert {
        f"target.{kind}_{width}"
        for kind in ("verify", "sample", "filter", "score", "logprobs")
        for width in (1, 2, 4, 8)
    } < set(names)


SIZES = st.fixed_dictionaries(
    {
        "vocab_size": st.integers(7, 4000),
        "padded_vocab": st.integers(4000, 4096),
        "max_context": st.integers(1, 300),
        "page_size": st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]),
        "prefill_width": st.integers(1, 64),
        "widths": st.sampled_from([[1], [1, 2], [1, 2, 4, 8], [1, 3, 8]]),
        "name": st.text(max_size=8),
    }
)


@given(sizes=SIZES, draft=st.booleans(), targets=st.sampled_from([("cpu",), ("gpu",), ("cpu", "gpu")]))
def test_any_consistent_plan_round_trips(sizes, draft, targets):
    made = make_plan(targets=targets, draft={} if draft else None, **sizes)
    plan = load_plan(json.dumps(made))
    text = dump_plan(plan)
    assert json.loads(text) == made
    assert text == json.dumps(made, sort_keys=True, separators=(",", ":"))
    assert load_plan(text) == plan


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from _places(part, (*path, key))


BASE = make_plan(targets=("gpu",), draft={}, widths=[1, 2])
PLACES = [path for path in _places(BASE) if path]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)


@given(path=st.sampled_from(PLACES), junk=JUNK, remove=st.booleans())
def test_damage_ends_in_a_typed_error_or_a_plan(path, junk, remove):
    plan = copy.deepcopy(BASE)
    place = plan
    for part in path[:-1]:
        place = place[part]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = junk
    try:
        loaded = load_plan(json.dumps(plan))
    except ArtifactError as error:
        assert error.where.startswith("$")
    else:
        check_plan(loaded)
        assert json.loads(dump_plan(loaded)) == plan


def test_the_document_names_every_field():
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    parts = [value for value in vars(schema).values() if dataclasses.is_dataclass(value)]
    names = {field.name for part in parts for field in dataclasses.fields(part)}
    assert not {name for name in names if f"`{name}`" not in text}
