"""Breaks parts of the testbed and mends them, whatever else is broken at the time.

A network cut is a pair of DROP rules in the network namespace of one end, written by a helper container that shares it:
the bridge's own containers have neither iptables nor the right to use it, and `docker network disconnect` would take a
node's routes for good.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache

import yaml

from tests.e2e.testbed import REPOSITORY, Testbed, container, kube_name, run
from tests.soak.report import Trouble
from tests.soak.story import KIND, Mishap

HELPER_IMAGE = "slurm-kube-bridge/testbed-node:dev"
MEND_TRIES = 6
TRY_AGAIN_S = 5.0

Wait = Callable[[float], object]


class CannotBreak(Exception):
    """The mishap could not be brought about, most often because another one has its victim down already."""


def carry_out(mishap: Mishap, testbed: Testbed, stop: threading.Event) -> Trouble:
    """Break, wait, mend; mends at once when `stop` is set. Never raises: what went wrong is in the answer."""
    began_s = time.time()
    failed = ""
    try:
        _break(mishap, testbed)
        stop.wait(mishap.lasts_s)
    except (AssertionError, subprocess.TimeoutExpired, CannotBreak) as why:
        failed = f"not brought about: {why}"
    mended = _mend_surely(mishap, testbed)
    return Trouble(mishap.kind, mishap.target, began_s, time.time(), failed or mended)


def _mend_surely(mishap: Mishap, testbed: Testbed) -> str:
    """Mending is tried again: another mishap may have its victim down. What went wrong in the end, or nothing."""
    for attempt in range(MEND_TRIES):
        try:
            _mend(mishap, testbed)
            return ""
        except (AssertionError, subprocess.TimeoutExpired) as why:
            if attempt == MEND_TRIES - 1:
                return f"not mended: {why}"
            time.sleep(TRY_AGAIN_S)
    return ""


def _break(mishap: Mishap, testbed: Testbed) -> None:
    match KIND[mishap.kind].verb:
        case "kill":
            testbed.kill(mishap.target)
        case "pause":
            testbed.pause(mishap.target)
        case "kill service":
            node, service = mishap.target.split("/")
            run("docker", "exec", container(node), "node-service", "kill", service)
        case "kill pod":
            node, workload = mishap.target.split("/")
            _kill_pod(node, workload, testbed)
        case "cut":
            _rules(mishap.target, "-I")
        case verb:
            raise CannotBreak(f"nobody knows how to {verb}")


def _mend(mishap: Mishap, testbed: Testbed) -> None:
    match KIND[mishap.kind].verb:
        case "kill":
            testbed.start(mishap.target)
        case "pause":
            testbed.unpause(mishap.target)
        case "kill service":
            node, service = mishap.target.split("/")
            run("docker", "exec", container(node), "node-service", "start", service)
        case "cut":
            _lift_cut(mishap.target)


def _kill_pod(node: str, workload: str, testbed: Testbed) -> None:
    """SIGKILL to the process; then its pod goes too, or the kubelet's growing back-off would be what is tested."""
    run("docker", "exec", container(node), "pkill", "-KILL", "-f", f"bridgectl {workload}")
    selector = f"-l=app.kubernetes.io/name={workload}"
    where = f"--field-selector=spec.nodeName={kube_name(node)}"
    arguments = ("-n", "slurm-kube-bridge", "delete", "pods", selector, where, "--force", "--grace-period=0")
    testbed.kube(*arguments, "--wait=false", timeout_s=30)


# --- cuts ---


@cache
def addresses() -> dict[str, str]:
    """Services' addresses by name, from the compose file."""
    services = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    return {name: service["networks"]["testbed"]["ipv4_address"] for name, service in services.items()}


def _rules(pair: str, verb: str) -> None:
    at, peer = pair.split("/")
    address = addresses()[peer]
    script = f"iptables -w {verb} INPUT -s {address} -j DROP && iptables -w {verb} OUTPUT -d {address} -j DROP"
    shared = ("--network", f"container:{container(at)}", "--cap-add", "NET_ADMIN", "--entrypoint", "sh")
    run("docker", "run", "--rm", "--name", _helper(pair), *shared, HELPER_IMAGE, "-c", script)


def _lift_cut(pair: str) -> None:
    """With a namespace that is gone, because its container was killed meanwhile, the rules are gone too."""
    try:
        _rules(pair, "-D")
    except AssertionError as why:
        gone = ("does a matching rule exist", "Bad rule", "is not running", "cannot join network of a non running")
        if not any(words in str(why) for words in gone):
            raise


def _helper(pair: str) -> str:
    return f"skb-soak-cut-{pair.replace('/', '-')}"
