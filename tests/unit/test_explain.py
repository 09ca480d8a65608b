"""`explain` on small fleets, worked out by hand: each layer as the first obstacle, then what helps and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from bridge.model.ownership import Side
from bridge.model.pause import EVERYTHING, Pause, PauseKind, Reach, Scope
from bridge.planning.explain import Link
from bridge.planning.explaining.answer import DEVICE_PLUGIN, FIT, LIMITS, NODES, QUOTA
from tests.unit.explain_world import NOW, Fleet, job, pod, policy, running

THREE = (job(17, 3),)
VISION = {"name": "vision", "accounts": ("vision",), "guarantee_nodes": 1, "borrow_limit_nodes": 1}


def first(links: tuple[Link, ...]) -> Link:
    return next(link for link in links if link.holds)


def layer(links: tuple[Link, ...], name: str) -> list[Link]:
    return [link for link in links if link.layer == name]


@pytest.mark.parametrize(
    ("fleet", "where", "words", "command"),
    [
        # limits: Slurm itself would not start it, whatever nodes there are
        (
            Fleet("SSSS", (job(held=True, waits_for="JobHeldUser"),)),
            LIMITS,
            "held (JobHeldUser)",
            "scontrol show job 17",
        ),
        (Fleet("SSSS", (job(waits_for="Dependency"),)), LIMITS, "waits for other jobs", "scontrol show job 17"),
        (
            Fleet("SSSS", (job(begins_at=NOW + timedelta(hours=1), waits_for="BeginTime"),)),
            LIMITS,
            "may not begin before 2026-03-02 13:00:00 UTC",
            "scontrol show job 17",
        ),
        (
            Fleet("SSSS", (job(waits_for="AssocGrpNodeLimit"),)),
            LIMITS,
            "limit of its association or QoS is reached (AssocGrpNodeLimit)",
            "sacctmgr show assoc where account=vision format=account,user,grptres,maxjobs,maxsubmit",
        ),
        (
            Fleet("SSSS", (job(waits_for="QOSMaxNodePerUserLimit"),)),
            LIMITS,
            "(QOSMaxNodePerUserLimit)",
            "sacctmgr show qos normal format=name,grptres,maxtrespu,maxjobspu",
        ),
        # quota: what the policy leaves
        (
            Fleet("KKKK", THREE, rules=policy(teams=[VISION])),
            QUOTA,
            "team vision holds 0 nodes and may hold 2 (guarantee 1), 3 more are asked",
            "bridgectl explain team vision",
        ),
        (
            Fleet("KKKK", THREE, rules=policy(slurm={"max_nodes": 2})),
            QUOTA,
            "slurm owns 0 of at most 2 nodes of pool h100, 3 more are needed",
            "bridgectl explain pool h100",
        ),
        (
            Fleet("KKKK", THREE, rules=policy(kubernetes={"floor_nodes": 2})),
            QUOTA,
            "kubernetes has 4 usable nodes and keeps 2 of its floor 2: it may give 2, 3 needed",
            "bridgectl explain pool h100",
        ),
        (
            Fleet("KkkK", (job(16, 3, priority=200), job(17, 2))),
            QUOTA,
            "one gang at a time: job 16 of alice comes first and lacks nodes",
            "squeue --states=PD --sort=-p",
        ),
        (
            Fleet("KKKK", THREE, snapshot_fields={"backoffs": {"job 17 of alice": NOW + timedelta(seconds=90)}}),
            QUOTA,
            "left alone for 90 s more",
            "bridgectl events",
        ),
        (
            Fleet("KKKK", THREE, snapshot_fields={"pauses": (Pause(EVERYTHING, "switch maintenance", "oncall", NOW),)}),
            QUOTA,
            "the bridge is paused: switch maintenance",
            "bridgectl status",
        ),
        (
            Fleet("KKKK", THREE, snapshot_fields={"pauses": (Pause(Scope(Reach.POOL, "h100"), "why", "oncall", NOW),)}),
            QUOTA,
            "pool h100 is paused: why",
            "bridgectl status",
        ),
        (
            Fleet("KKKK", THREE, kube_unreadable="time-out"),
            QUOTA,
            "UNKNOWN: kube-apiserver is unreadable: time-out; nothing moves",
            "bridgectl status",
        ),
        (
            Fleet("KKK>", THREE, rules=policy(max_in_flight=2)),
            QUOTA,
            "1 handoffs run, at most 2 at a time",
            "bridgectl handoffs",
        ),
        (
            Fleet("KKKK", (job(17, 3, submitted_at=NOW - timedelta(seconds=1)),)),
            QUOTA,
            "it waits for 1 s and counts from 2 s on",
            "bridgectl policy show",
        ),
        # fit: what the pool is made of
        (Fleet("SS", THREE), FIT, "it asks for 3 nodes, and pool h100 has 2", "bridgectl policy show"),
        (
            Fleet("SSSS", (job(17, 1, gpus_per_node=16),)),
            FIT,
            "it asks for 16 GPUs a node, and a node of pool h100 has 8",
            "bridgectl policy show",
        ),
        (
            Fleet("SSSS", (job(17, 2, features="h200"),)),
            FIT,
            "it asks for 2 whole nodes with 8 GPUs that offer h200; pool h100 has 4, 0 of them offer that",
            "sinfo -N -p gpu -o '%N %G %f'",
        ),
        (
            # 6 + 6 GPUs are free, but on no node all 8
            Fleet("ss", (job(17, 1), *(running(10 + n, f"n{n}", gpus=2, exclusive=False) for n in (1, 2)))),
            FIT,
            "on the nodes of slurm 12 GPUs are free, 0 nodes wholly; it asks for 8 GPUs",
            "sinfo -N -p gpu -O NodeList,Gres,GresUsed",
        ),
        # nodes: each for a reason of its own
        (
            Fleet("KkkS", THREE),
            NODES,
            "3 needed: 1 free on the slurm side, 0 arriving, 1 could be handed over, 2 could not",
            "bridgectl nodes",
        ),
        # device plugin: its nodes would be enough if they offered their GPUs
        (
            Fleet("sdd", (running(12, "n1"),), (pod(), pod("chat-2"))),
            DEVICE_PLUGIN,
            "2 nodes (n2, n3): Ready, but offers 0 of 8 GPUs to Kubernetes; see `bridgectl explain node n2`",
            "kubectl describe node n2.k",
        ),
    ],
)
def test_the_first_obstacle(fleet: Fleet, where: str, words: str, command: str) -> None:
    kind, name = ("pod", "web/chat-1") if fleet.pods else ("job", "17")
    found = fleet.told(kind, name)
    obstacle = first(found.chain)
    assert (obstacle.layer, obstacle.command) == (where, command)
    assert words in obstacle.text
    subject = "pod web/chat-1" if fleet.pods else "job 17 of alice"
    assert found.verdict == f"{subject} waits ({where}): {obstacle.text}."


def test_the_layers_come_in_order_and_each_link_has_a_command() -> None:
    order = [LIMITS, QUOTA, FIT, NODES, DEVICE_PLUGIN]
    chain = Fleet("KkkSad", THREE).told("job", "17").chain
    assert [order.index(link.layer) for link in chain] == sorted(order.index(link.layer) for link in chain)
    assert {link.layer for link in chain} == set(order)
    assert all(link.command for link in chain)


def test_nodes_are_grouped_by_reason_with_at_most_five_names() -> None:
    chain = Fleet("kkkkkkahS", THREE, rules=policy(min_hold_s=60)).told("job", "17").chain
    assert [(link.text, link.command) for link in layer(chain, NODES)[1:]] == [
        ("6 nodes (n1, n2, n3, n4, n5 and 1 more): busy", "kubectl get pods -A --field-selector spec.nodeName=n1.k"),
        ("1 node (n7): drained by admin: bad DIMM on the slurm side", "scontrol show node n7"),
        ("1 node (n8): changed hands 20 s ago, minimum hold 60 s", "bridgectl nodes n8"),
        (
            # 8 usable nodes are 4 each by weight; Slurm wants only 3, and Kubernetes 6
            "work of kubernetes may be ended for slurm up to its fair share: it owns 1 of 3, it is below that; "
            "preemption is idle_only",
            "bridgectl explain pool h100",
        ),
    ]


@pytest.mark.parametrize(
    ("fleet", "holds", "claim"),
    [
        # nothing is theirs without a floor and a weight
        (Fleet("kk", (job(),), rules=policy(slurm={"weight": 0}, preemption={"mode": "requeue"})), True, "no more"),
        (
            Fleet("kk", (job(),), rules=policy(preemption={"mode": "requeue", "max_victims_per_window": 0})),
            False,
            "below that",
        ),
        (Fleet("kk", (job(),), rules=policy(preemption={"mode": "none"})), True, "below that; preemption is none"),
        (
            Fleet("kk", (job(),), rules=policy(slurm={"weight": 0}, teams=[VISION], preemption={"mode": "none"})),
            True,
            "team vision is below its guarantee",
        ),
    ],
)
def test_whether_work_may_be_ended_for_it(fleet: Fleet, holds: bool, claim: str) -> None:
    link = layer(fleet.told("job", "17").chain, NODES)[-1]
    assert link.holds is holds
    assert claim in link.text


def test_nodes_that_slurm_plans_are_free_for_the_first_in_its_queue_only() -> None:
    fleet = Fleet("PPs", (job(16, 3, priority=200), job(17, 1), running(12, "n3")))
    assert layer(fleet.told("job", "16").chain, NODES)[0].numbers["free_nodes"] == 2
    behind = layer(fleet.told("job", "17").chain, NODES)
    assert behind[0].numbers["free_nodes"] == 0
    assert behind[1].text == "2 nodes (n1, n2): planned by Slurm for another job"


def test_what_is_met_or_about_to_be_is_no_obstacle() -> None:
    assert Fleet("KKKS", THREE).told("job", "17").verdict == (
        "job 17 of alice gets n1, n2 from kubernetes: the plan of this moment begins it."
    )
    assert Fleet("S<S", THREE).told("job", "17").verdict == (
        "job 17 of alice needs no move: slurm has 3 nodes for it, 1 of them on their way; its own scheduler is next."
    )


def test_a_gang_larger_than_the_limit_of_handoffs_goes_alone() -> None:
    found = Fleet("KKKK", (job(17, 4),), rules=policy(max_in_flight=2)).told("job", "17")
    assert "gets n1, n2, n3, n4" in found.verdict
    assert not any(link.holds for link in found.chain)


def test_a_quarantined_node_is_nobodys_and_no_spare_one() -> None:
    chain = Fleet("uSS", THREE).told("job", "17").chain
    assert layer(chain, NODES)[1].text == "1 node (n1): process 7 holds /dev/nvidia0"


def test_a_node_and_a_pool_say_which_pauses_cover_them() -> None:
    scopes = (EVERYTHING, Scope(Reach.POOL, "h100"), Scope(Reach.NODE, "n1"), Scope(Reach.NODE, "n2"))
    pauses = tuple(Pause(scope, "bad switch", "oncall", NOW) for scope in scopes)
    fleet = Fleet("SS", snapshot_fields={"pauses": pauses})
    whole = ["the bridge is paused: bad switch", "pool h100 is paused: bad switch"]
    node = fleet.told("node", "n1")
    assert [link.text for link in layer(node.chain, "pause")] == [*whole, "node n1 is paused: bad switch"]
    assert node.verdict == "node n1 belongs to slurm and stays: the bridge is paused: bad switch."
    assert [link.text for link in layer(fleet.told("pool", "h100").chain, "pause")] == whole


def test_a_recall_says_since_when_and_by_whom_and_keeps_no_lent_node() -> None:
    recall = Pause(EVERYTHING, "power cut", "oncall", NOW, PauseKind.RECALL)
    held = Pause(Scope(Reach.NODE, "n3"), "bad fan", "mia", NOW)
    fleet = Fleet("SkK", pods=(pod(),), snapshot_fields={"pauses": (recall, held)})
    told = "the bridge is recalled by oncall since 2026-03-02 12:00 UTC, every lent node comes home: power cut"
    assert fleet.told("node", "n1").verdict == f"node n1 belongs to slurm and stays: {told}."
    assert fleet.told("node", "n2").verdict == (
        "node n2 moves to slurm with the plan of this moment: recalled: power cut."
    )
    assert fleet.told("node", "n3").verdict == "node n3 belongs to kubernetes and stays: node n3 is paused: bad fan."
    assert next(link for link in fleet.told("pod", "web/chat-1").chain if link.holds).text == told


def test_a_pod_that_no_node_helps_is_explained_beside_one_of_its_group_that_is_helped() -> None:
    why = "keeps away from pods app=bank by zone, and one is in each of the shared nodes that fit"
    large = pod("chat-2", gpus=0, obstacle=why, helps=frozenset(), asks="2 of nvidia.com/mig-1g.10gb")
    fleet = Fleet("SS", pods=(pod(), large))
    chain = fleet.told("pod", "web/chat-2").chain
    assert chain[0].text.startswith("2 of nvidia.com/mig-1g.10gb asked; Kubernetes")
    assert why in first(chain).text
    assert why not in str(fleet.told("pod", "web/chat-1"))


def test_of_a_group_in_two_parts_each_pod_is_explained_by_its_own() -> None:
    parts = [pod(f"chat-{i}", helps=frozenset({f"n{i}.k"})) for i in (1, 2)]
    fleet = Fleet("SK", pods=tuple(parts))
    assert [demand.key for demand in fleet.snapshot().demands] == ["Deployment web/chat", "Deployment web/chat (2)"]
    assert "needs no move" not in fleet.told("pod", "web/chat-1").verdict, "n1 is still Slurm's"
    assert fleet.told("pod", "web/chat-2").verdict.startswith("pod web/chat-2 needs no move: kubernetes has 1")


def test_a_tripped_breaker_says_since_when_and_its_numbers() -> None:
    tripped = Pause(Scope(Reach.POOL, "h100"), "11 leases ended badly", "breaker", NOW, PauseKind.BREAKER)
    fleet = Fleet("SS", pods=(pod(),), snapshot_fields={"pauses": (tripped,)})
    told = "the circuit breaker of pool h100 stops its policy's moves since 2026-03-02 12:00 UTC: 11 leases ended badly"
    for kind, name in (("pod", "web/chat-1"), ("node", "n1"), ("pool", "h100")):
        assert told in [link.text for link in fleet.told(kind, name).chain if link.holds]


def test_a_job_behind_those_at_which_a_plan_looks_is_told_so() -> None:
    fleet = Fleet("kk", tuple(job(id) for id in range(17, 22)))
    texts = [link.text for link in fleet.told("job", "21").chain if link.holds]
    assert "it waits with job 17 of alice: jobs of this shape share a node, or come after it" in texts


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("12", "job 12 of bob is RUNNING on n1: it does not wait."),
        (
            "18",
            "job 18 of alice waits outside the bridge: it waits in partition cpu; "
            "the shared pools' partitions are: gpu.",
        ),
    ],
)
def test_jobs_that_wait_for_no_node_of_the_bridge(name: str, verdict: str) -> None:
    assert Fleet("sS", (running(12, "n1"), job(18, partition="cpu"))).told("job", name).verdict == verdict


def test_of_a_job_that_runs_it_is_told_what_its_end_would_lose() -> None:
    saved = f"bridge: checkpoint=900 saved={(NOW - timedelta(seconds=80)).timestamp():.0f}"
    told = Fleet("ss", (running(12, "n1", comment=saved), running(13, "n2", may_requeue=False))).told
    [lost] = layer(told("job", "12").chain, "work")
    # 8 GPUs, 80 s since the report, 120 s to start again.
    assert lost.text == "ending it now loses 1600 GPU-s, as it reported a checkpoint 80 s ago"
    assert lost.numbers == {"gpus": 8, "loss_gpu_s": 1600}
    [spared] = layer(told("job", "13").chain, "work")
    assert spared.text == (
        "ending it now loses 15360 GPU-s, as it says nothing of checkpoints; "
        "no victim: it may not be requeued (not a batch job, or sbatch --no-requeue)"
    )


def test_a_task_of_an_array_and_a_het_component_are_found_by_their_own_names() -> None:
    array = Fleet("kk", (job(17, array=17, task_count=4),))
    assert array.told("job", "17_3").subject == "job 17_3 of alice"
    het = Fleet("kk", (job(17, het_job=17), job(18, het_job=17)))
    assert "2 needed" in layer(het.told("job", "17+1").chain, NODES)[0].text


def test_what_does_not_exist_is_not_explained() -> None:
    fleet = Fleet("SS", (job(),))
    names = [("job", "18"), ("job", "seventeen"), ("pod", "web/none"), ("node", "n9"), ("team", "x"), ("pool", "x")]
    assert [fleet.explain(kind, name) for kind, name in names] == [None] * len(names)


def test_unknown_is_said_and_not_guessed() -> None:
    fleet = Fleet("SS", (job(),), (pod(),), slurm_unreadable="refused", kube_unreadable="time-out")
    assert fleet.told("job", "17").verdict == "UNKNOWN: slurmrestd is unreadable: refused"
    assert fleet.told("pod", "web/chat-1").verdict == "UNKNOWN: kube-apiserver is unreadable: time-out"
    assert first(fleet.told("team", "web").chain).text.startswith("UNKNOWN") if fleet.explain("team", "web") else True
    assert first(fleet.told("pool", "h100").chain).text.startswith("UNKNOWN: slurmrestd is unreadable: refused")
    node = Fleet("?S").told("node", "n1")
    assert node.verdict == "node n1 belongs to slurm and stays: UNKNOWN on the slurm side: slurmctld does not list it."


# --- when ---


@pytest.mark.parametrize(
    ("fleet", "in_s", "basis"),
    [
        # n4 is free, n1 idle in Kubernetes; the third comes with the shorter time limit
        (
            Fleet("KssS", (*THREE, running(12, "n2", left_s=840), running(13, "n3", left_s=60))),
            60,
            "1 node is free already, 1 node is idle on the other side, 1 node ends by its time limits within 60 s; "
            "hand-over not measured",
        ),
        # ... and the hand-over of n1 takes 1.8 s at the median of 1.0, 1.8 and 9.0
        (
            Fleet("KSS", THREE, snapshot_fields={"reclaim_s": {Side.SLURM: (9.0, 1.0, 1.8)}}),
            1.8,
            "2 nodes are free already, 1 node is idle on the other side within 2 s; hand-over measured p50 1.8 s",
        ),
        # a handoff that began 2 s ago and takes 10 s at the median
        (
            Fleet("<SS", THREE, snapshot_fields={"reclaim_s": {Side.SLURM: (10.0,)}}),
            8,
            "2 nodes are free already, 1 node comes by a handoff under way within 8 s",
        ),
        (
            Fleet("<SS", THREE),
            300,
            "2 nodes are free already, 1 node comes by the deadline of its handoff's step within 300 s",
        ),
        # minimum hold: handed over 20 s ago, 60 s are held
        (
            Fleet("hSS", THREE),
            40,
            "2 nodes are free already, 1 node is free of hold, idle age and backoff within 40 s; "
            "hand-over not measured",
        ),
        (
            Fleet("KSS", THREE, snapshot_fields={"backoffs": {"job 17 of alice": NOW + timedelta(seconds=90)}}),
            90,
            "2 nodes are free already, 1 node is idle on the other side; hand-over not measured; not before 90 s",
        ),
        # of the four only two may come from Kubernetes above its floor; or only one, as Slurm may own two
        (
            Fleet("KKKS", (job(17, 4),), rules=policy(kubernetes={"floor_nodes": 1})),
            None,
            "not known: 3 of 4 nodes have a known time (1 node is free already, 2 nodes are idle on the other side)",
        ),
        (
            Fleet("KKKS", (job(17, 4),), rules=policy(slurm={"max_nodes": 2})),
            None,
            "not known: 2 of 4 nodes have a known time (1 node is free already, 1 node is idle on the other side)",
        ),
        # one of the two jobs on n1 has no time limit
        (
            Fleet(
                "sSS",
                (
                    *THREE,
                    running(12, "n1", gpus=4, exclusive=False),
                    running(13, "n1", gpus=4, exclusive=False, left_s=None),
                ),
            ),
            None,
            "not known: 2 of 3 nodes have a known time (2 nodes are free already)",
        ),
        # no time limit, no estimate
        (
            Fleet("sSS", (*THREE, running(12, "n1", left_s=None))),
            None,
            "not known: 2 of 3 nodes have a known time (2 nodes are free already)",
        ),
        # the floor of Kubernetes is no node's time
        (
            Fleet("KSS", THREE, rules=policy(kubernetes={"floor_nodes": 1})),
            None,
            "not known: 2 of 3 nodes have a known time (2 nodes are free already)",
        ),
        (
            Fleet("SSS", (job(17, 3, held=True, waits_for="JobHeldUser"),)),
            None,
            "not known: more nodes would not start it: it is held (JobHeldUser)",
        ),
        (
            Fleet("KKS", (job(17, 1, begins_at=NOW + timedelta(seconds=500), waits_for="BeginTime"),)),
            500,
            "1 node is free already; not before 500 s",
        ),
        # the gang before it takes n1 and n2 first, n3 is the first that is left
        (
            Fleet("SSs", (job(16, 3, priority=200), job(17, 1), running(12, "n3", left_s=100))),
            100,
            "2 nodes are free already, 1 node ends by its time limits within 100 s, after job 16 of alice",
        ),
    ],
)
def test_when(fleet: Fleet, in_s: float | None, basis: str) -> None:
    found = fleet.told("job", "17").estimate
    assert found.basis == basis
    assert found.in_s == (in_s if in_s is None else pytest.approx(in_s))


# --- what helps ---


def helps(fleet: Fleet, kind: str = "job", name: str = "17") -> list[tuple[str, float, str]]:
    return [(each.text, each.displaces_gpu_s, each.command) for each in fleet.told(kind, name).remedies]


def test_remedies_are_ranked_by_what_they_displace() -> None:
    """Lost by ending job 13: 2 GPUs x (1800 s since it began + 120 s to restart) = 3840 GPU-s; job 12: 8 x 1920."""
    jobs = (job(17, 3), running(12, "n1"), running(13, "n2", gpus=2, exclusive=False))
    found = Fleet("ssSa", jobs).told("job", "17").remedies
    assert [(each.text, each.displaces, each.displaces_gpu_s) for each in found] == [
        ("give n4 back to service once it is mended (drained by admin: bad DIMM)", "nothing", 0.0),
        ("wait: 840 s by the estimate", "nothing", 0.0),
        ("end job 13 of bob, job 12 of bob: frees n2, n1", "job 13 of bob, job 12 of bob", 19_200.0),
    ]


APPLY = "bridgectl policy show > policy.yaml; bridgectl policy apply policy.yaml"


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        (
            Fleet("KKS", THREE, rules=policy(kubernetes={"floor_nodes": 2})),
            ("lower floor_nodes of kubernetes in pool h100 from 2 to 0", 0.0, APPLY),
        ),
        (
            Fleet("KKS", THREE, rules=policy(slurm={"max_nodes": 2})),
            ("raise max_nodes or borrow_limit_nodes of slurm in pool h100 by 1", 0.0, APPLY),
        ),
        (
            Fleet("KKS", THREE, rules=policy(teams=[VISION])),
            ("raise the borrow_limit_nodes of team vision", 0.0, APPLY),
        ),
        (
            Fleet("KKK>S", (job(17, 4),), rules=policy(max_in_flight=2)),
            ("raise max_in_flight of pool h100 above 2", 0.0, APPLY),
        ),
        (
            Fleet("SSS", (job(17, 3, held=True, waits_for="JobHeldUser"),)),
            ("release it", 0.0, "scontrol release 17"),
        ),
        (
            # 2 + 2 GPUs are used on two nodes: one of the jobs has room beside the other
            Fleet("ss", (job(17, 1), *(running(10 + n, f"n{n}", gpus=2, exclusive=False) for n in (1, 2)))),
            (
                "free n1 by moving job 11 of bob (2 GPUs) to the 6 free GPUs of other partly used nodes",
                3840.0,
                "scontrol requeue 11",
            ),
        ),
    ],
)
def test_what_would_help(fleet: Fleet, expected: tuple[str, float, str]) -> None:
    assert expected in helps(fleet)


def test_protected_work_is_never_offered() -> None:
    fleet = Fleet("sS", (job(17, 2), running(12, "n1", left_s=None, may_requeue=False)))
    assert helps(fleet) == []


# --- nodes, teams, pools ---


@pytest.mark.parametrize(
    ("letters", "name", "words"),
    [
        ("S", "n1", "belongs to slurm and could move: nobody on the other side needs it now"),
        ("s", "n1", "busy on the slurm side"),
        ("a", "n1", "drained by admin: bad DIMM on the slurm side: only who did this lifts it"),
        (
            ">",
            "n1",
            "belongs to nobody and stays: in motion to kubernetes, step empty and waits for: job 9 of bob is COMPL",
        ),
        ("h", "n1", "changed hands 20 s ago, minimum hold 60 s"),
        ("k", "n1.k", "pod web/on-n1 of team web uses 8 GPUs, no time limit; ending it loses 480 GPU-s"),
        ("d", "n1", "the kubelet offers 0 of 8 GPUs"),
    ],
)
def test_why_a_node_stays(letters: str, name: str, words: str) -> None:
    assert words in Fleet(letters).told("node", name).verdict


@pytest.mark.parametrize(
    ("labels", "broken"),
    [
        ({}, "allocatable"),
        ({"feature.node.kubernetes.io/pci-10de.present": "false"}, "driver"),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, "device plugin"),
        ({"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "false"}, "labels"),
    ],
)
def test_the_first_broken_layer_of_a_node_without_gpus(labels: dict[str, str], broken: str) -> None:
    chain = Fleet("d", labels=labels).told("node", "n1").chain
    assert first(chain).layer == broken
    asked = [
        link.layer for link in chain if link.layer in ("driver", "device plugin", "labels", "taints", "allocatable")
    ]
    assert asked == ["driver", "device plugin", "labels", "taints", "allocatable"]


def test_a_team_and_whom_it_waits_behind() -> None:
    """vision used 3 of 4 GPU-hours and has one of three weights (web runs): (3/4) / (1/3) = 2.25; speech 0.75."""
    rules = policy(teams=[{"name": "vision", "accounts": ["vision"]}, {"name": "speech", "accounts": ["speech"]}])
    fleet = Fleet("kk", (job(17), job(18, account="speech")), rules=rules)
    fleet = replace(fleet, snapshot_fields={"usage": {"vision": 3 * 3600.0, "speech": 3600.0}})
    found = fleet.told("team", "vision")
    assert found.verdict == "team vision waits for 1 node: waits behind speech: more rank or a smaller ratio."
    share = layer(found.chain, "fair share")[0]
    assert share.text == "fair-share ratio 2.25 (1: just its part): 3.0 of 4.0 GPU-hours, halved every half-life"
    assert first(Fleet("kk", (job(17, 3),), rules=policy(teams=[VISION])).told("team", "vision").chain).layer == QUOTA
    assert fleet.told("team", "speech").verdict == (
        "team speech waits for 1 node, and no limit of its own is in the way."
    )


def test_a_pool_says_how_it_stands() -> None:
    night = {"name": "night", "from": "20:00", "until": "06:00", "slurm_floor_nodes": 1}
    rules = policy(slurm={"floor_nodes": 2, "lend_limit_nodes": 1}, headroom={"nodes": 2}, timetable=[night])
    found = Fleet("SkK>", rules=rules).told("pool", "h100")
    assert found.verdict == (
        "pool h100 has 4 nodes: slurm owns 1, kubernetes owns 3; no floor is broken and no demand waits for a node."
    )
    assert [link.text for link in found.chain] == [
        "slurm: floor 2, lends 1 of it now, fair share 3, at most 4; owns 1, 0 busy, wants 0",
        "kubernetes: floor 0, fair share 1, at most 4; owns 3, 1 busy, wants 1",
        "headroom 2 (fixed): 1 idle node in Kubernetes, 1 arriving",
        "1 node of kubernetes (n2): busy",
        "1 node in motion (n4)",
        "floors change at 2026-03-02 20:00 UTC to slurm 1, kubernetes 0",
    ]
    assert found.estimate.in_s == 8 * 3600
