"""The Kubernetes half of a handoff: makes each ``NodeLoan.spec`` so, and answers in its status.

``OneOwner``: a node is called closed only when taint and fence entry were both read back, and empty only by a quorum
    read made a while after both stood.
``NotOurs``: of a Node it writes one taint and one annotation, lifted only under a mark they carry; never a cordon.
``FailClosed``: a kubelet that does not answer makes its node UNKNOWN, not empty.

A pass over one node (`reconcile`) reads everything anew and decides by pure functions (`decisions`); watches only ring
the bell. So a pass may be repeated, lost, or cut off anywhere. May import `bridge.kube`; the core does not import it.
"""
