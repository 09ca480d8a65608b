"""What people, machines and other systems do to a fleet, and undo again later: the field's known kinds, one each.

After all of them are over, nothing of them is left but what the bridge made of it: a test then asks whether everything
settles. Nobody here lifts the second latch of a side while the first one is off: who does has opened the node himself.
And nobody writes to an apiserver that is away.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from bridge.model.ownership import Node
from bridge.simulation.clock import Effect
from bridge.simulation.world import World

Mishap = Callable[[World, Node, random.Random], Effect]
"""Begins at once, to a node where it is about one; returns what ends it."""


def machine_dies(world: World, node: Node, _: random.Random) -> Effect:
    world.power_off(node.name)
    return partial(world.power_on, node.name)


def slurmd_is_lost(world: World, node: Node, _: random.Random) -> Effect:
    world.slurm.lose_slurmd(node.slurm_name)
    return partial(world.slurm.return_slurmd, node.slurm_name)


def kubelet_is_lost(world: World, node: Node, _: random.Random) -> Effect:
    world.kube.cluster.lose_kubelet(node.kube_name)
    return partial(world.kube.cluster.return_kubelet, node.kube_name)


def node_flaps(world: World, node: Node, rng: random.Random) -> Effect:
    """Both its daemons come and go a few times."""
    for number in range(3):
        begins_s = number * 25 + rng.uniform(0, 5)
        world.clock.after(begins_s, partial(_lose_both, world, node))
        world.clock.after(begins_s + rng.uniform(1, 15), partial(_return_both, world, node))
    return _nothing


def _lose_both(world: World, node: Node) -> None:
    world.slurm.lose_slurmd(node.slurm_name)
    world.kube.cluster.lose_kubelet(node.kube_name)


def _return_both(world: World, node: Node) -> None:
    world.slurm.return_slurmd(node.slurm_name)
    world.kube.cluster.return_kubelet(node.kube_name)


def slurmctld_restarts(world: World, _: Node, rng: random.Random) -> Effect:
    world.slurm.restart_controller(away_s=rng.uniform(0.5, 30))
    return _nothing


def token_of_slurm_expires(world: World, _: Node, __: random.Random) -> Effect:
    world.faults.away("slurm.")
    return partial(world.faults.back, "slurm.")


def token_of_kubernetes_expires(world: World, _: Node, __: random.Random) -> Effect:
    world.faults.away("kube.")
    return partial(world.faults.back, "kube.")


def apiserver_goes_away(world: World, _: Node, __: random.Random) -> Effect:
    world.kube.cluster.stop_apiserver()
    return world.kube.cluster.start_apiserver


def database_goes_away(world: World, _: Node, __: random.Random) -> Effect:
    """For brokers; where a test has put no faults around its ledger, nothing happens."""
    world.faults.away("ledger.")
    return partial(world.faults.back, "ledger.")


def node_controller_dies(world: World, _: Node, __: random.Random) -> Effect:
    world.kube.controller.stop()
    return world.kube.controller.start


def device_plugin_dies(world: World, node: Node, _: random.Random) -> Effect:
    world.kube.cluster.stop_device_plugin(node.kube_name)
    return partial(world.kube.cluster.restart_device_plugin, node.kube_name)


def inspector_is_silent(world: World, node: Node, _: random.Random) -> Effect:
    world.kube.silence_inspector(node.kube_name)
    return partial(world.kube.restore_inspector, node.kube_name)


def inspector_is_blind(world: World, node: Node, _: random.Random) -> Effect:
    world.kube.blind_inspector(node.kube_name, "/proc is not the host's")
    return partial(world.kube.restore_inspector, node.kube_name)


def admin_drains(world: World, node: Node, rng: random.Random) -> Effect:
    """And resumes what still carries that drain, on a node that is lent once its other latch stands."""
    reason = f"fan {rng.randrange(100)} broken"
    world.slurm.admin_drain(node.slurm_name, reason)
    return partial(_resume_if, world, node, reason)


def _resume_if(world: World, node: Node, reason: str) -> None:
    shown = world.slurm.node(node.slurm_name)
    if "DRAIN" not in shown.states or shown.reason != reason:
        return
    opens_both = node.name in world.adopted and world.kube.open(node.kube_name) and "RESERVED" not in shown.states
    if not opens_both:
        world.slurm.admin_resume(node.slurm_name)
    else:
        world.clock.after(5, partial(_resume_if, world, node, reason))


def admin_resumes(world: World, node: Node, _: random.Random) -> Effect:
    """A stray RESUME, on whatever drain there is: the reservation must hold."""
    drained, held = _latches(world, node)
    if held or not drained:
        world.slurm.admin_resume(node.slurm_name)
    return _nothing


def admin_edits_the_reservation(world: World, node: Node, _: random.Random) -> Effect:
    """Takes a node out of the bridge's own reservation: the drain must hold, and the reservation come back."""
    drained, held = _latches(world, node)
    if drained and held:
        world.slurm.admin_takes_out(node.slurm_name)
    return _nothing


def _latches(world: World, node: Node) -> tuple[bool, bool]:
    """Drained, reserved: as it is now."""
    states = world.slurm.node(node.slurm_name).states
    return "DRAIN" in states, "RESERVED" in states


def admin_reserves(world: World, node: Node, _: random.Random) -> Effect:
    """A MAINT reservation of the admins' own, around one node."""
    name = f"maintenance-of-{node.slurm_name}"
    world.slurm.admin_reserve(name, [node.slurm_name])
    return partial(world.slurm.admin_unreserve, name)


def person_cordons(world: World, node: Node, _: random.Random) -> Effect:
    world.kube.cluster.cordon(node.kube_name)
    return partial(world.kube.cluster.cordon, node.kube_name, False)


def other_controller_untaints(world: World, node: Node, _: random.Random) -> Effect:
    """The fence must hold, and the taint come back."""
    if world.kube.cluster.apiserver_up and node.kube_name in world.kube.cluster.fence:
        world.kube.cluster.set_taint(node.kube_name, "")
    return _nothing


def fence_entry_is_deleted(world: World, node: Node, _: random.Random) -> Effect:
    """The taint must hold, and the entry come back."""
    if world.kube.cluster.apiserver_up and world.kube.cluster.nodes[node.kube_name].taint:
        world.kube.cluster.set_fence(node.kube_name, "")
    return _nothing


def finalizers_hold_pods(world: World, node: Node, _: random.Random) -> Effect:
    held = world.kube.cluster.on(node.kube_name)
    for pod in held:
        pod.finalizer = True

    def let_go() -> None:
        for pod in held:
            world.kube.cluster.drop_finalizer(pod)

    return let_go


def node_object_is_made_anew(world: World, node: Node, _: random.Random) -> Effect:
    """Its taint is gone with it: the fence must hold."""
    cluster = world.kube.cluster
    if cluster.apiserver_up and (node.kube_name in cluster.fence or not cluster.nodes[node.kube_name].taint):
        cluster.replace_node(node.kube_name)
    return _nothing


def wall_clock_is_stepped(world: World, _: Node, rng: random.Random) -> Effect:
    seconds = rng.choice([-1, 1]) * rng.uniform(1, 300)
    world.clock.step_wall(seconds)
    return partial(world.clock.step_wall, -seconds)


def _nothing() -> None:
    """What is over by itself needs no end."""


MISHAPS: dict[str, Mishap] = {
    mishap.__name__: mishap
    for mishap in (
        machine_dies,
        slurmd_is_lost,
        kubelet_is_lost,
        node_flaps,
        slurmctld_restarts,
        token_of_slurm_expires,
        token_of_kubernetes_expires,
        apiserver_goes_away,
        database_goes_away,
        node_controller_dies,
        device_plugin_dies,
        inspector_is_silent,
        inspector_is_blind,
        admin_drains,
        admin_resumes,
        admin_edits_the_reservation,
        admin_reserves,
        person_cordons,
        other_controller_untaints,
        fence_entry_is_deleted,
        finalizers_hold_pods,
        node_object_is_made_anew,
        wall_clock_is_stepped,
    )
}
"""By name, as a trace tells them."""
