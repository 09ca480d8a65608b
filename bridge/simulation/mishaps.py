"""A bad day by seed: what people, machines and other systems do to the fleet at random moments, and undo again later.

Each mishap is one of the field's known kinds. After all of them are over, nothing of them is left but what the bridge
made of it: a test then asks whether everything settles.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from bridge.simulation.clock import Effect
from bridge.simulation.world import World

Mishap = Callable[[World, random.Random], Effect]
"""Begins at once; returns what ends it."""


def mishap_every(world: World, rng: random.Random, *, mean_s: float, until_s: float, longest_s: float = 120) -> None:
    """Let mishaps begin at random, `mean_s` apart on average, each over within `longest_s`, all before `until_s`."""
    moment_s = world.clock.monotonic_s() + rng.expovariate(1 / mean_s)
    while moment_s < until_s - longest_s:
        mishap, seed = rng.choice(MISHAPS), rng.getrandbits(32)
        world.at(moment_s, partial(_happen, world, mishap, random.Random(seed), longest_s))  # noqa: S311 repeatable
        moment_s += rng.expovariate(1 / mean_s)


def _happen(world: World, mishap: Mishap, rng: random.Random, longest_s: float) -> None:
    undo = mishap(world, rng)
    world.clock.after(rng.uniform(1, longest_s), undo)


def machine_dies(world: World, rng: random.Random) -> Effect:
    node = rng.choice(world.nodes).name
    world.power_off(node)
    return partial(world.power_on, node)


def slurmd_is_lost(world: World, rng: random.Random) -> Effect:
    node = rng.choice(world.nodes).slurm_name
    world.slurm.lose_slurmd(node)
    return partial(world.slurm.return_slurmd, node)


def kubelet_is_lost(world: World, rng: random.Random) -> Effect:
    node = rng.choice(world.nodes).kube_name
    world.kube.cluster.lose_kubelet(node)
    return partial(world.kube.cluster.return_kubelet, node)


def slurmctld_restarts(world: World, rng: random.Random) -> Effect:
    world.slurm.restart_controller(away_s=rng.uniform(0.5, 30))
    return lambda: None


def apiserver_goes_away(world: World, _: random.Random) -> Effect:
    world.kube.cluster.stop_apiserver()
    return world.kube.cluster.start_apiserver


def node_controller_dies(world: World, _: random.Random) -> Effect:
    world.kube.controller.stop()
    return world.kube.controller.start


def device_plugin_dies(world: World, rng: random.Random) -> Effect:
    node = rng.choice(world.nodes).kube_name
    world.kube.cluster.stop_device_plugin(node)
    return partial(world.kube.cluster.restart_device_plugin, node)


def inspector_is_silent(world: World, rng: random.Random) -> Effect:
    node = rng.choice(world.nodes).kube_name
    world.kube.silence_inspector(node)
    return partial(world.kube.restore_inspector, node)


def admin_drains(world: World, rng: random.Random) -> Effect:
    """And resumes what still carries that drain."""
    node, reason = rng.choice(world.nodes).slurm_name, f"fan {rng.randrange(100)} broken"
    world.slurm.admin_drain(node, reason)
    return partial(_resume_if, world, node, reason)


def _resume_if(world: World, node: str, reason: str) -> None:
    shown = world.slurm.node(node)
    if "DRAIN" in shown.states and shown.reason == reason:
        world.slurm.admin_resume(node)


def admin_resumes(world: World, rng: random.Random) -> Effect:
    """A stray RESUME, on whatever drain there is: the reservation must hold."""
    world.slurm.admin_resume(rng.choice(world.nodes).slurm_name)
    return lambda: None


def person_cordons(world: World, rng: random.Random) -> Effect:
    node = rng.choice(world.nodes).kube_name
    world.kube.cluster.cordon(node)
    return partial(world.kube.cluster.cordon, node, False)


def other_controller_untaints(world: World, rng: random.Random) -> Effect:
    """The fence must hold, and the taint come back."""
    world.kube.cluster.set_taint(rng.choice(world.nodes).kube_name, "")
    return lambda: None


def node_object_is_made_anew(world: World, rng: random.Random) -> Effect:
    world.kube.cluster.replace_node(rng.choice(world.nodes).kube_name)
    return lambda: None


def wall_clock_is_stepped(world: World, rng: random.Random) -> Effect:
    seconds = rng.choice([-1, 1]) * rng.uniform(1, 300)
    world.clock.step_wall(seconds)
    return partial(world.clock.step_wall, -seconds)


MISHAPS: tuple[Mishap, ...] = (
    machine_dies,
    slurmd_is_lost,
    kubelet_is_lost,
    slurmctld_restarts,
    apiserver_goes_away,
    node_controller_dies,
    device_plugin_dies,
    inspector_is_silent,
    admin_drains,
    admin_resumes,
    person_cordons,
    other_controller_untaints,
    node_object_is_made_anew,
    wall_clock_is_stepped,
)
