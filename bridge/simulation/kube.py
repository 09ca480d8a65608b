"""A simulated Kubernetes behind `KubePort`: a cluster, its node controller and an inspector on every node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from bridge.model.errors import CallFailed, Unreadable
from bridge.model.kube import DeviceHolder, Inspection, KubeNode, KubeObservation, LoanSpec, PodNote
from bridge.model.ownership import Node
from bridge.ports import OnChange
from bridge.simulation.clock import Latency, SimulatedClock
from bridge.simulation.cluster import Cluster, KubeletNode, KubeTimings
from bridge.simulation.faults import Faults
from bridge.simulation.machines import Machines
from bridge.simulation.node_controller import NodeController


class SimulatedKube:
    """See the module. Names are Kubernetes' own; stories are told on `cluster` and `controller`."""

    def __init__(
        self,
        clock: SimulatedClock,
        nodes: Collection[Node],
        machines: Machines,
        faults: Faults,
        *,
        timings: KubeTimings | None = None,
        latency: Latency | None = None,
    ) -> None:
        self._clock = clock
        self._machines = machines
        self._faults = faults
        self._timings = timings or KubeTimings()
        self._latency = latency or Latency()
        self.cluster = Cluster(clock, nodes, machines, self._timings, self._latency)
        self.controller = NodeController(clock, self.cluster, self._timings, self._latency)
        self._nonces: dict[str, str] = {}
        self._inspections: dict[str, Inspection] = {}
        self._silent_inspectors: set[str] = set()
        self._blind_inspectors: dict[str, str] = {}
        self._watchers: list[OnChange] = []
        self.told: list[PodNote] = []
        self.cluster.on_change(lambda _: self._ring())
        self.controller.on_change(self._ring)

    # --- KubePort ---

    def observe(self) -> KubeObservation:
        return self._faults.read("kube.observe", self._look)

    def want(self, loans: Sequence[LoanSpec]) -> None:
        for loan in loans:
            self._require(loan.node)
        self._faults.write("kube.want", [partial(self._reach_want, loan) for loan in loans])

    def inspect(self, node: str, nonce: str) -> None:
        self._require(node)
        self._faults.write("kube.inspect", [partial(self._reach_inspector, node, nonce)])

    def tell(self, notes: Sequence[PodNote]) -> None:
        self.told += notes

    def watch(self, on_change: OnChange) -> None:
        self._watchers.append(on_change)

    def close(self) -> None:
        self._watchers.clear()

    # --- what breaks ---

    def silence_inspector(self, node: str) -> None:
        """Its pod does not run: no answer, until `restore_inspector`."""
        self._silent_inspectors.add(node)

    def blind_inspector(self, node: str, error: str) -> None:
        """It answers, and says why it could not look."""
        self._blind_inspectors[node] = error

    def restore_inspector(self, node: str) -> None:
        self._silent_inspectors.discard(node)
        self._blind_inspectors.pop(node, None)

    # --- what people do to the custom resources ---

    def delete_loan(self, node: str, *, annotated: bool = False) -> None:
        """kubectl delete nodeloan. Admission refuses it (`CallFailed`) unless the object is `annotated` to allow it."""
        if not annotated:
            raise CallFailed("Forbidden: the bridge needs this while it shares nodes")
        self.controller.forget(node)

    # --- questions for the oracle ---

    def open(self, node: str) -> bool:
        """No latch of the bridge stands on a Node that is there."""
        found = self.cluster.nodes.get(node)
        return found is not None and not found.taint and node not in self.cluster.fence

    # --- inside ---

    def _look(self) -> KubeObservation:
        if not self.cluster.apiserver_up:
            raise Unreadable("kube.observe", "the apiserver does not answer")
        return KubeObservation(
            read_at=self._clock.now(),
            nodes={name: self._show(node) for name, node in self.cluster.nodes.items()},
            pending=self.cluster.pending(),
            controller_alive=self.controller.alive,
            loans_elsewhere={
                name: loan.spec for name, loan in self.controller.loans.items() if name not in self.cluster.nodes
            },
        )

    def _show(self, node: KubeletNode) -> KubeNode:
        pods = self.cluster.on(node.name)
        busy = sorted(pod.key for pod in self.cluster.work_on(node.name))
        shown = KubeNode(
            name=node.name,
            uid=node.uid,
            ready=node.ready,
            cordoned=node.cordoned,
            gpus_allocatable=node.gpus_allocatable,
            gpus_used=sum(pod.gpus for pod in pods),
            work_pods=tuple(busy),
            inspection=self._inspections.get(node.name),
            running=self.cluster.running(node.name),
            taint=node.taint,
        )
        loan = self.controller.loans.get(node.name)
        return shown if loan is None else replace(shown, spec=loan.spec, status=loan.status)

    def _require(self, node: str) -> None:
        if node not in self.cluster.nodes and node not in self.cluster.removed:
            raise CallFailed(f"Kubernetes has no shared node '{node}'")

    def _reach(self) -> None:
        if not self.cluster.apiserver_up:
            raise CallFailed("the apiserver does not answer")

    def _reach_want(self, loan: LoanSpec) -> None:
        self._reach()
        self.controller.want(loan)

    def _reach_inspector(self, node: str, nonce: str) -> None:
        self._reach()
        delay_s = self._latency(self._timings.inspector_s)
        self._nonces[node] = nonce
        self._clock.after(delay_s, lambda: self._inspect(node, nonce))

    def _inspect(self, name: str, nonce: str) -> None:
        """The inspector looks, and looks again while there is somebody to wait for, until it is asked anew."""
        if self._nonces[name] != nonce:
            return
        node = self.cluster.nodes.get(name) or self.cluster.removed[name]
        error = self._blind_inspectors.get(name, "")
        answer = Inspection(nonce, () if error else self._holders(node), error)
        unheard = name in self._silent_inspectors or not node.kubelet_alive
        silent = unheard or name in self.cluster.removed or not self.cluster.apiserver_up
        if silent or answer.holders or answer.error:
            self._clock.after(self._timings.inspector_recheck_s, lambda: self._inspect(name, nonce))
        if not silent and self._inspections.get(name) != answer:
            self._inspections[name] = answer
            self._ring()

    def _holders(self, node: KubeletNode) -> tuple[DeviceHolder, ...]:
        return tuple(
            DeviceHolder(process.pid, process.work, process.user, "/dev/nvidia0")
            for process in self._machines.running(node.machine)
        )

    def _ring(self) -> None:
        for watcher in self._watchers:
            watcher("kubernetes")
