"""Settings: misspelt names, wrong types, and values that cannot go together."""

from __future__ import annotations

import pytest

from embedfleet.problems import Refused
from embedfleet.settings import Settings, load


def refused(**data: object) -> list[tuple[str, str, str]]:
    with pytest.raises(Refused) as caught:
        load(data, "h1")
    assert all(problem.host == "h1" and problem.fatal for problem in caught.value.problems)
    return [(problem.setting, problem.reason, problem.cure) for problem in caught.value.problems]


def test_defaults_are_bge_m3() -> None:
    settings = load({}, "h1")
    assert (settings.model_id, settings.model_name, settings.instance_ports) == ("BAAI/bge-m3", "bge-m3", [8000, 8001])


@pytest.mark.parametrize(
    ("written", "meant"),
    [("vllm_verison", "vllm_version"), ("instance_port", "instance_ports"), ("model_revison", "model_revision")],
)
def test_misspelt_setting_names_the_nearest(written: str, meant: str) -> None:
    [(setting, reason, cure)] = refused(**{written: 1})
    assert setting == written
    assert "no such setting" in reason
    assert repr(meant) in cure


def test_every_problem_is_told_at_once() -> None:
    found = refused(vllm_verison="1", gateway_port="eighty", drain_timeout=0, nonsense_xyz=1)
    assert {setting for setting, _, _ in found} == {"vllm_verison", "gateway_port", "drain_timeout", "nonsense_xyz"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gateway_port", "8080"),
        ("gateway_port", 70000),
        ("gateway_port", True),
        ("instance_ports", []),
        ("instance_ports", 8000),
        ("vllm_version", "0.32"),
        ("vllm_commit", "abc"),
        ("dtype", "int8"),
        ("vllm_patches", [{"file": "x.patch"}]),
        ("vllm_patches", [{"file": "x.patch", "sha256": "00", "extra": 1}]),
        ("model_id", "bge-m3"),
        ("model_sha256", {"model.safetensors": "123"}),
        ("service_user", "a b"),
        ("service_user", "root"),
        ("gateway_host", ""),
        ("gateway_host", "0.0.0.0:1; }"),
        ("gateway_host", "999.1.1.1"),
        ("model_endpoint", "ftp://x"),
    ],
)
def test_wrong_value_names_setting_and_cure(name: str, value: object) -> None:
    found = refused(**{name: value})
    assert all(setting.startswith(name) for setting, _, _ in found)
    assert all(name in cure or "group_data" in cure for _, _, cure in found)


def test_the_same_port_twice() -> None:
    [(_, reason, _)] = refused(instance_ports=[8000, 8080])
    assert "8080" in reason


def test_batch_under_length_is_refused_before_vllm_dies_of_it() -> None:
    [(_, reason, _)] = refused(max_model_len=8192, max_num_batched_tokens=2048)
    assert "2048" in reason
    assert "8192" in reason


def test_cmake_args_with_a_space() -> None:
    [(_, reason, _)] = refused(vllm_cmake_args=["-DX=a b"])
    assert "space" in reason


def test_data_of_pyinfra_is_not_ours() -> None:
    load({"_sudo": True, "ssh_user": "ops", "docker_platform": "x", "fake_responses": {}}, "h1")


def test_every_setting_is_documented() -> None:
    missing = [name for name, field in Settings.model_fields.items() if not field.description]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("python_extra_index_urls", "https://u:SECRET@idx/simple"),
        ("serve_env", "HF_TOKEN=SECRET"),
        ("serve_env", {"HF_TOKEN": b"SECRET"}),
        ("model_endpoint", "ftp://u:SECRET@x"),
        ("python_index_url", ["https://u:SECRET@x"]),
    ],
)
def test_a_wrong_value_that_may_be_a_secret_is_not_shown(name: str, value: object) -> None:
    with pytest.raises(Refused) as caught:
        load({name: value}, "h1")
    assert "SECRET" not in str(caught.value)
