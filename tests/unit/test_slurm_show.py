"""What ``scontrol show`` printed on real clusters, of many versions, and what of it the bridge believes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.slurm import reading, show
from tests.unit.test_slurm_reading import SAMPLES, needs_samples


def shown(name: str) -> dict[str, reading.SlurmNode]:
    return reading.nodes(show.nodes((SAMPLES / name).read_text()))


@needs_samples
@pytest.mark.parametrize(
    ("name", "node", "states", "gpus", "used", "features"),
    [
        ("clockwork/scontrol_node_2.txt", "test-node", {"MIXED"}, 8, 8, {"x86_64", "turing", "48gb", "gpu:rtx8000"}),
        ("excerpts.txt", "gpu-st-ml-1", {"IDLE", "CLOUD"}, 1, 0,
         {"static", "g7e.8xlarge", "dist-ml", "efa", "gpu", "gpu:rtxproserver6000"}),
        ("excerpts.txt", "med0304", {"MIXED", "DRAIN"}, 4, 0, {"skylake", "gpu:tesla"}),
        ("excerpts.txt", "h2node01", {"MIXED", "PLANNED"}, 4, 4,
         {"GPU_SKU:H200", "GPU_FP:FP64", "GPU_ANY", "h200", "gpu:h200"}),
        ("excerpts.txt", "gl1000", {"MIXED", "PLANNED"}, 2, 2, {"gpu:v100"}),
        ("excerpts.txt", "gpu3", {"MIXED", "PLANNED"}, 4, 0, {"gpu:v100"}),
        ("excerpts.txt", "d1", {"IDLE", "CLOUD", "DYNAMIC_NORM", "NOT_RESPONDING", "POWERING_UP"}, 0, 0,
         {"dyn", "standard_f4"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_recorded_nodes(name: str, node: str, states: set[str], gpus: int, used: int, features: set[str]) -> None:
    found = shown(name)[node]
    assert (found.states, found.gpus, found.gpus_used, found.features) == (states, gpus, used, features)
    assert (found.reason, found.reason_set_at) == ("", None)


@needs_samples
@pytest.mark.parametrize(
    ("name", "first", "count"),
    [
        ("clockwork/scontrol_node_2.txt", "NodeName", 2),
        ("clockwork/scontrol_node_3.txt", "NodeName", 5),
        ("clockwork/scontrol_job_2.txt", "JobId", 2),
        ("excerpts.txt", "NodeName", 6),
    ],
)
def test_every_recorded_text_is_as_many_records_as_it_shows(name: str, first: str, count: int) -> None:
    text = (SAMPLES / name).read_text()
    found = show.records(text, first)
    assert len(found) == count
    assert len({record[first] for record in found}) == count
    assert all(len(record) > 10 for record in found)


@needs_samples
def test_a_recorded_job() -> None:
    first, second = show.records((SAMPLES / "clockwork/scontrol_job_2.txt").read_text(), "JobId")
    assert (first["JobState"], first["Priority"]) == ("PENDING", "0")
    assert (first["TresPerNode"], first["Features"], first["NumNodes"]) == ("gpu:titanxp:1", "x86_64", "1")
    assert (second["JobName"], second["Restarts"]) == ("imagenet.sh", "11")


TEXT_OF_OTHERS = {
    "README.md", "clockwork/scontrol_job_2.txt", "clockwork/scontrol_node_2.txt", "clockwork/scontrol_node_3.txt",
    "excerpts.txt",
}  # fmt: skip
NEVER_ASKED_FOR = {
    "rivos/sinfo_fallback.txt": "lines of a site's own sinfo format",
    "rivos/squeue_fallback.txt": "lines of a site's own squeue format, some of them broken on purpose",
    "site_conf/README.txt": "words about the next three",
    "site_conf/gres.conf": "slurmd's and slurmctld's to read",
    "site_conf/slurm_nodes.conf": "slurmd's and slurmctld's to read",
    "site_conf/topology.conf": "slurmctld's to read; it tells the result with each node",
    "topograph/topology_block.conf": "slurmctld's to read",
    "topograph/topology_block_placeholder.conf": "slurmctld's to read",
    "topograph/topology_tree.conf": "slurmctld's to read",
    "xdmod/sacct_parsable.txt": "accounting of the past",
}
"""Recorded files in forms that the bridge never meets, and why."""


@needs_samples
def test_every_recorded_file_has_a_test_or_a_reason() -> None:
    files = {str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith(".json")} == TEXT_OF_OTHERS | NEVER_ASKED_FOR.keys()


PLAIN = """NodeName=n1 Arch=x86_64
   Gres=gpu:h100:8(S:0-1)
   OS=Linux Gres=gpu:9 State=DOWN
   State=IDLE+DRAIN Owner=N/A
   Reason={}
   Topology=core:leaf1

NodeName=n2 State=IDLE
"""


@pytest.mark.parametrize(
    "reason", ["x", "Gres=gpu:99 State=DOWN NodeName=n9", "NodeName=n9", "", "bridge:x:1:2 lent [bridge@2026-01-01]"]
)
def test_what_a_person_wrote_changes_nothing(reason: str) -> None:
    found = reading.nodes(show.nodes(PLAIN.format(reason)))
    assert set(found) == {"n1", "n2"}
    assert (found["n1"].gpus, found["n1"].states, found["n1"].topology) == (8, {"IDLE", "DRAIN"}, "core:leaf1")
    assert (found["n1"].reason, found["n2"].gpus) == ("", 0)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_some_records(text: str) -> None:
    assert all("NodeName" in record for record in show.records(text, "NodeName"))
