"""Error families: text, JSON and exit codes."""

import pickle

import pytest
from specdec_runtime.faults import (
    FAMILIES,
    ArtifactError,
    ContractError,
    RequestError,
    SpecdecError,
    error_from_json,
    error_json,
    exit_code,
)


def test_text():
    assert str(RequestError("too long", "prompt_ids", "Shorten it")) == "too long (prompt_ids). Shorten it"
    assert str(RequestError("too long", action="Shorten it")) == "too long. Shorten it"
    assert str(RequestError("too long")) == "too long"


@pytest.mark.parametrize("family", FAMILIES.values())
def test_json_round_trip(family):
    error = family("message", "where", "action")
    again = error_from_json(error_json(error))
    assert type(again) is family and str(again) == str(error)
    assert error_from_json(error_json(error)["error"]).where == "where"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_exit_codes():
    codes = {name: exit_code(family("x")) for name, family in FAMILIES.items()}
    assert codes == {"RequestError": 2, "ArtifactError": 3, "DeviceFault": 4, "ContractError": 5}


@pytest.mark.parametrize("data", [None, 3, "boom", [], {}, {"error": None}, {"error": {"type": "TypeError"}}])
def test_anything_else_is_a_contract_error(data):
    error = error_from_json(data)
    assert type(error) is ContractError and error.message


def test_one_base_class():
    assert issubclass(ArtifactError, SpecdecError)
