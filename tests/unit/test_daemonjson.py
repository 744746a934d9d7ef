"""daemon.json: whatever somebody wrote there survives, and comes back to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.daemonjson import Odd, live_restore, parsed, takes_cdi, untouched, with_nvidia, without_nvidia

NVIDIA = {"args": [], "path": "nvidia-container-runtime"}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
tables = st.none() | st.dictionaries(st.sampled_from(["nvidia", "cdi", "kata", "x"]), values, max_size=3)
configs = st.dictionaries(st.text(max_size=8) | st.sampled_from(["hosts", "live-restore", "default-runtime"]), values, max_size=5).flatmap(
    lambda base: st.fixed_dictionaries({}, optional={"runtimes": tables, "features": tables}).map(lambda more: base | more)
)  # fmt: skip
texts = st.builds(
    lambda config, indent, ascii_only: json.dumps(config, indent=indent, ensure_ascii=ascii_only),
    configs,
    st.sampled_from([None, 2, 4, "\t"]),
    st.booleans(),
)


def _same(left: object, right: object) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@given(texts, st.booleans())
def test_what_somebody_wrote_survives(text: str, cdi: bool) -> None:
    before, new = json.loads(text), with_nvidia(text, cdi=cdi)
    after = before if new is None else json.loads(new)
    assert "nvidia" in after["runtimes"]
    assert not cdi or "cdi" in after["features"]
    for key, value in before.items():
        if key in ("runtimes", "features") and value is not None:
            assert all(_same(after[key][name], inner) for name, inner in value.items())
        elif key not in ("runtimes", "features"):
            assert _same(after[key], value)
    assert set(after) <= {*before, "runtimes", "features"}
    if new is not None:
        assert with_nvidia(new, cdi=cdi) is None, "a second time there is nothing to do"


@given(texts, st.booleans())
def test_it_comes_back_to_the_byte(text: str, cdi: bool) -> None:
    new = with_nvidia(text, cdi=cdi)
    if new is not None and json.loads(text).get("default-runtime") != "nvidia":
        assert without_nvidia(new, text) == text


@given(configs, st.booleans())
def test_what_was_added_since_stays(config: dict[str, Any], cdi: bool) -> None:
    text = json.dumps(config)
    new = with_nvidia(text, cdi=cdi)
    if new is None or config.get("default-runtime") == "nvidia":
        return
    changed = json.dumps({**json.loads(new), "debug": "since"})
    back = without_nvidia(changed, text)
    assert back is not None
    assert _same(json.loads(back), {**config, "debug": "since"})


@pytest.mark.parametrize(
    "text",
    ["{", '{"a": 1,}', "// words\n{}", "[]", '"x"', "null", "{} {}", '{"runtimes": []}', '{"runtimes": "x"}', '{"a": NaN}', '{"a": 1e999}', "[" * 100000],
)  # fmt: skip
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(Odd):
        with_nvidia(text, cdi=False)


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        new = with_nvidia(text, cdi=True)
    except Odd:
        return
    assert new is None or "nvidia" in parsed(new)["runtimes"]


def test_no_file_and_an_empty_one() -> None:
    new = with_nvidia(None, cdi=False)
    assert (
        new
        == '{\n    "runtimes": {\n        "nvidia": {\n            "args": [],\n            "path": "nvidia-container-runtime"\n        }\n    }\n}\n'
    )
    assert without_nvidia(new, None) is None
    assert with_nvidia("  \n", cdi=False) == new
    assert without_nvidia(new, "  \n") == "  \n"
    assert without_nvidia(None, "{}") is None


def test_a_runtime_of_somebody_else_stays() -> None:
    theirs = '{"runtimes": {"nvidia": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}}, "features": {"cdi": false}}'
    assert with_nvidia(theirs, cdi=True) is None
    assert not takes_cdi(theirs)
    assert without_nvidia(theirs, theirs) == theirs


def test_the_default_runtime_is_not_taken_away() -> None:
    new = with_nvidia('{"debug": true}', cdi=True)
    back = without_nvidia(json.dumps({**json.loads(new or ""), "default-runtime": "nvidia"}), '{"debug": true}')
    assert json.loads(back or "") == {"debug": True, "default-runtime": "nvidia", "runtimes": {"nvidia": NVIDIA}}


def test_half_a_surrogate_is_written_as_it_was() -> None:
    new = with_nvidia('{"ü": "\\ud800"}', cdi=False)
    assert new
    assert new.encode()
    assert json.loads(new)["ü"] == "\ud800"


def test_the_indentation_stays() -> None:
    assert (with_nvidia('{\n\t"debug": true\n}\n', cdi=False) or "").startswith('{\n\t"debug": true,\n\t"runtimes"')


def test_live_restore() -> None:
    assert live_restore('{"live-restore": true}')
    assert not live_restore('{"live-restore": false}')
    assert not live_restore(None)
    assert not live_restore("{")


@given(texts, st.booleans())
def test_whose_file_it_is(text: str, cdi: bool) -> None:
    new = with_nvidia(text, cdi=cdi)
    assert not untouched(text if new is None else new)
