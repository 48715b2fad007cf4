"""What sinfo says, understood: partitions, GPUs, limits; and the way of asking that follows."""

from __future__ import annotations

import pytest

from slurm.doctor.partitions import chosen, parse_gpus, parse_sinfo, partitions_check, sentence
from slurm.doctor.request_style import Trial, recommended, slurm_section, style_check

ANSWER = """\
cpu*|up|4:00:00|20|idle|64|256000|(null)
gpu|up|2-00:00:00|2|mixed|96|1000000|gpu:h100:8(S:0-1)
gpu|up|2-00:00:00|1|drained|96|1000000|gpu:h100:8(S:0-1)
mix|up|infinite|1|idle|96|1000000|gpu:a100:4(S:0),gpu:v100:2,nvme:1
old|inact|infinite|1|down*|8|16000+|gpu:2
a banner of the site
"""


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:8(S:0-1)", {"h100": 8}),
        ("gpu:8", {None: 8}),
        ("gpu:a100:4(S:0),gpu:v100:2,nvme:1", {"a100": 4, "v100": 2}),
        ("gpu:nvidia_h100_80gb_hbm3:8(IDX:0-7)", {"nvidia_h100_80gb_hbm3": 8}),
        ("shard:16,gpu:1", {None: 1}),
        ("(null)", {}),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: dict[str | None, int]) -> None:
    """GPUs are counted by type, whatever else stands in the text."""
    assert parse_gpus(gres) == gpus


def test_partitions_are_put_together() -> None:
    """Lines of one partition are one partition; what is no line of sinfo is left out."""
    partitions = {partition.name: partition for partition in parse_sinfo(ANSWER)}
    assert list(partitions) == ["cpu", "gpu", "mix", "old"]
    gpu = partitions["gpu"]
    assert (gpu.nodes(), gpu.nodes(able=True), gpu.gpu_types, gpu.limit_s) == (3, 2, {"h100": 8}, 172800.0)
    assert partitions["cpu"].is_default
    assert not partitions["old"].is_up
    assert partitions["old"].nodes(able=True) == 0
    assert sentence(gpu) == "gpu: 3 nodes (2 usable), GPUs h100:8, at most 48 h, drained/mixed"


def test_a_partition_with_gpus_is_chosen() -> None:
    """The wanted one, else the default one if it has GPUs, else the first that has."""
    partitions = parse_sinfo(ANSWER)
    assert (found := chosen(partitions, None)) is not None
    assert found.name == "gpu"
    assert (found := chosen(partitions, "mix")) is not None
    assert found.name == "mix"
    assert chosen(partitions, "nowhere") is None


def test_what_is_wrong_with_partitions() -> None:
    """A wrong name and a cluster without usable nodes are failures, none with GPUs is a drawback."""
    partitions = parse_sinfo(ANSWER)
    assert partitions_check(partitions, None, None).status == "ok"
    assert partitions_check(partitions, "nowhere", None).status == "fail"
    assert partitions_check(partitions, "cpu", None).status == "warn"
    assert partitions_check(partitions, "old", None).status == "warn"
    assert partitions_check(partitions[3:], None, None).status == "fail"
    assert partitions_check([], None, "sinfo: timed out after 20 s").status == "fail"


def _trial(style: str, kind: str | None, count: int, ok: bool) -> Trial:
    return Trial("gres" if style == "gres" else "gpus-per-node", kind, count, ok, "words of Slurm", "hint")


def test_the_plainest_way_that_works() -> None:
    """One type: none is named where that works. Several types: the one with most GPUs is named."""
    gpu, mix = parse_sinfo(ANSWER)[1:3]
    plain = [_trial("gres", None, 8, True), _trial("gres", "h100", 8, True)]
    assert slurm_section(recommended(plain, gpu), gpu) == {"partition": "gpu", "gpu_request": "gres"}
    typed = [_trial("gres", None, 8, False), _trial("gres", "h100", 8, True)]
    assert slurm_section(recommended(typed, gpu), gpu) == {
        "partition": "gpu",
        "gpu_request": "gres",
        "gpu_type": "h100",
    }
    several = [
        _trial("gres", None, 4, True),
        _trial("gres", "v100", 2, True),
        _trial("gpus-per-node", "a100", 4, True),
    ]
    assert slurm_section(recommended(several, mix), mix) == {
        "partition": "mix",
        "gpu_request": "gpus-per-node",
        "gpu_type": "a100",
    }


def test_no_way_is_a_failure_in_slurms_words() -> None:
    """Where GPUs cannot be asked for, Slurm's words and a hint are shown, and no lines are suggested."""
    gpu = parse_sinfo(ANSWER)[1]
    refused = [_trial("gres", None, 8, False)]
    assert recommended(refused, gpu) is None
    check = style_check(refused, None, gpu)
    assert (check.status, check.hint) == ("fail", "hint")
    assert "words of Slurm" in check.meaning
    assert slurm_section(None, gpu) == {}
