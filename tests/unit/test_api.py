"""The calls beside the plans that they carry out."""

import inspect

import pytest

import dovetail


@pytest.mark.parametrize("name", ["join", "join_all", "enrich"])
def test_call_when_it_has_a_plan_then_both_have_one_signature(name: str) -> None:
    call, planned = getattr(dovetail, name), getattr(dovetail.plan, name)
    assert inspect.signature(call).parameters == inspect.signature(planned).parameters
    assert inspect.signature(call).return_annotation == "DataFrame"
    assert call.__doc__ == planned.__doc__
    assert not hasattr(dovetail, "explain")
