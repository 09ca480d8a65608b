"""Kubernetes as the bridge sees it: custom resources, live views of nodes and pods, and the broker's `KubePort`.

The official client supplies what is hard to get right (kubeconfig, TLS, tokens that rotate); lists, watches and writes
are plain JSON over it. Its ``SharedInformer`` was tried and left: it cannot list custom resources (it takes
``dict.items`` for the items), knows no time-outs, and cannot say how old its view is, which is what `Unreadable` needs.

May import `bridge.model` and `bridge.ports`; the node controller, the inspector and the wiring import it.
"""
