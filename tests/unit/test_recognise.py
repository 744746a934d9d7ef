"""Which row a host is: proven, or undecided with a cure; never a guess."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedfleet.facts.survey import Survey, parse
from embedfleet.gpus import GPUS, row_of_name
from embedfleet.platforms import PLATFORMS, Platform
from embedfleet.problems import Refused
from embedfleet.recognise import capabilities, choose, recognise
from embedfleet.settings import Settings
from tests.unit.hosts import HOSTS, ROWS, UNDECIDED, lines, survey


@pytest.mark.parametrize(("host", "row"), sorted(ROWS.items()))
def test_every_row_is_recognised(host: str, row: str) -> None:
    answer = recognise(survey(host))
    assert answer.row == row
    assert answer.why


def test_there_is_a_host_for_every_row() -> None:
    assert set(ROWS.values()) == set(PLATFORMS)


@pytest.mark.parametrize("name", sorted(UNDECIDED))
def test_what_is_not_proven_is_not_guessed(name: str) -> None:
    sections, word = UNDECIDED[name]
    with pytest.raises(Refused) as caught:
        choose("h1", "auto", parse(lines(sections)))
    [problem] = caught.value.problems
    assert word in problem.reason
    if any(name.startswith(kind) for kind in ("Jetson", "N1x", "POWER8", "riscv64")):
        assert problem.cure == "no row fits: take it out of the inventory"
    else:
        assert "name the platform" in problem.cure


@pytest.mark.parametrize("name", ["Jetson Orin", "Jetson Thor", "N1x"])
def test_a_system_that_fits_no_row_cannot_be_named_into_one(name: str) -> None:
    with pytest.raises(Refused):
        choose("h1", "arm-gpu", parse(lines(UNDECIDED[name][0])))


def test_an_undecided_host_can_be_named() -> None:
    graviton = parse(lines(UNDECIDED["Graviton4"][0]))
    assert "grace-cpu" in recognise(graviton).candidates
    assert choose("h1", "grace-cpu", graviton).name == "grace-cpu"


def test_a_maker_s_box_is_the_same_row() -> None:
    for vendor, product in (
        ("ASUSTeK COMPUTER INC.", "GX10"),
        ("Dell  Inc.", "Dell Pro Max with GB10 FCM1253"),
        ("", ""),
    ):
        assert recognise(survey("gb10", vendor=vendor, product=product)).row == "gb10"


def test_a_gpu_without_pci_bus_is_told_by_its_name() -> None:
    assert recognise(survey("gh200", pci="")).row == "gh200"
    assert recognise(survey("x86-gpu", pci="", virt="kvm")).row == "x86-gpu"


def test_a_discrete_card_in_a_grace_host_is_remarked() -> None:
    both = survey(
        "gh200", pci="bus\n0009:01:00.0 0x10de 0x2342 0x030200 nvidia\n0001:01:00.0 0x10de 0x2bb5 0x030000 nvidia"
    )
    answer = recognise(both)
    assert answer.row == "gh200"
    assert "RTX PRO 6000" in answer.remarks[0]


def test_cores_that_contradict_the_gpu_are_remarked() -> None:
    answer = recognise(survey("gh200", cpu="CPU implementer\t: 0x41\nCPU part\t: 0xd0c"))
    assert answer.row == "gh200"
    assert "41/d0c" in answer.remarks[0]


def test_some_gpus_given_to_guests_leave_the_others() -> None:
    some = survey(
        "arm-gpu", pci="bus\n0000:05:00.0 0x10de 0x2236 0x030200 vfio-pci\n0000:06:00.0 0x10de 0x2236 0x030200"
    )
    answer = recognise(some)
    assert (answer.row, len(answer.remarks)) == ("arm-gpu", 1)


def test_two_kinds_of_grace_in_one_host_are_undecided() -> None:
    both = survey("gh200", smi="", pci="bus\n0009:01:00.0 0x10de 0x2342 0x030200\n0019:01:00.0 0x10de 0x2941 0x030200")
    assert recognise(both).row is None
    assert recognise(both).candidates == ("gb200", "gh200")


def test_the_mode_of_a_partition_decides_what_may_be_built() -> None:
    old = survey("power10", cpu="cpu\t\t: POWER9 (architected), altivec supported\nrevision\t: 2.0 (pvr 0080 0200)")
    answer = recognise(old)
    assert answer.row == "power9"
    assert "runs in POWER9 mode" in answer.remarks[0]


def test_v100_on_power_stays_unused_and_is_told() -> None:
    assert "2 x V100 SXM2 16GB stays unused" in recognise(survey("power9")).remarks[0]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA GB100", ""),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA H200", ""),
    ],
)
def test_names(name: str, row: str) -> None:
    assert row_of_name(name) == row


def test_capabilities_come_from_the_driver_or_from_the_ids() -> None:
    assert capabilities(survey("gh200")) == ("9.0",)
    assert capabilities(survey("arm-gpu")) == ("8.6",)
    assert capabilities(survey("x86-cpu")) == ()


def test_unknown_platform() -> None:
    with pytest.raises(Refused, match="'gh300' is no platform"):
        choose("h1", "gh300", survey("gh200"))


def test_platform_of_another_architecture() -> None:
    with pytest.raises(Refused, match="aarch64"):
        choose("h1", "gh200", survey("x86-cpu"))


@pytest.mark.parametrize("row", PLATFORMS.values(), ids=lambda row: row.name)
def test_every_value_of_a_row_says_how_it_is_known(row: Platform) -> None:
    values = {field.name for field in fields(row)} - {"name", "title", "known"}
    assert set(row.known) == values
    for name, known in row.known.items():
        assert known.source, name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", known.date), name
    assert row.how != "verified", "nobody has verified a row on hardware yet"


def test_every_gpu_has_a_source_and_no_id_is_in_two_rows() -> None:
    for number, gpu in GPUS.items():
        assert re.fullmatch(r"[0-9a-f]{4}", number)
        assert gpu.source
        assert not gpu.row or gpu.row in PLATFORMS
        assert not gpu.row or gpu.capability in PLATFORMS[gpu.row].capability


@given(st.sampled_from(sorted(HOSTS)), st.data())
def test_a_damaged_survey_is_answered_or_undecided(name: str, data: st.DataObject) -> None:
    section = data.draw(st.sampled_from(sorted(HOSTS[name])))
    found = parse(lines(HOSTS[name] | {section: data.draw(st.text(max_size=80))}))
    answer = recognise(found)
    assert answer.why
    assert answer.row is None or answer.row in PLATFORMS


@given(
    st.builds(Survey, machine=st.sampled_from(["", "aarch64", "x86_64", "ppc64le", "s390x"]), virt=st.text(max_size=6))
)
def test_a_survey_of_unknowns_is_never_a_gpu_host(found: Survey) -> None:
    assert recognise(found).row is None


def test_rows_pin_a_version_that_is_known() -> None:
    for row in PLATFORMS.values():
        assert row.version(None) == row.vllm
        assert row.version("0.33.0") == "0.33.0"
    assert Settings().vllm_version is None
    assert replace(PLATFORMS["gh200"], vllm="0.33.0").version(None) == "0.33.0"
