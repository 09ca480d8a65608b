"""Commands that only look: status, nodes, handoffs, plan, events."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import quote

import typer

from bridge.cli.client import Broker, connect
from bridge.cli.failures import REFUSED, UNKNOWN
from bridge.cli.output import Column, Format, Output, print_facts, print_json, print_json_line, print_line, print_table
from bridge.cli.text import KINDS, age, duration, joined, moment, paused_text, until

_POLL_S = 25
_SOURCES = ("slurm", "kubernetes", "ledger")


def status(context: typer.Context, output: Output = Format.TABLE) -> None:
    """How well the broker sees and whether it acts. Exit code 3 while anything is UNKNOWN or nobody leads."""
    report = connect(context).get("/v1/status")
    if output is Format.JSON:
        print_json(report)
    else:
        print_facts([*((name, _source(report[name], report["now"])) for name in _SOURCES), *_state(report)])
    if report["leader"] is None or any(report[name]["state"] == "unknown" for name in _SOURCES):
        raise typer.Exit(UNKNOWN)


def _source(source: dict[str, Any], now: str) -> str:
    if source["state"] == "unknown":
        return f"UNKNOWN {source['reason']}"
    return f"fresh, read {age(source['read_at'], now)} ago" if source["read_at"] else "fresh"


def _state(report: dict[str, Any]) -> list[tuple[str, str]]:
    leader, tick_age_s = report["leader"], report["last_tick_age_s"]
    passed = "" if tick_age_s is None else f", last pass {duration(tick_age_s)} ago"
    facts = [
        ("mode", _mode(report)),
        ("leader", f"{leader} (epoch {report['epoch']}){passed}" if leader else "UNKNOWN nobody leads"),
    ]
    if report["paused"] is not None:
        owners = (f"{owner} {count}" for owner, count in sorted(report["nodes_by_owner"].items()))
        facts += [
            ("policy", f"version {report['policy_version']}"),
            ("nodes", joined(owners)),
            ("handoffs", f"{report['handoffs_live']} {_going(report)}"),
            *(_paused(pause, report["now"]) for pause in report.get("pauses", ())),
        ]
    if report.get("victims_last_day"):
        lost = f"{report['lost_gpu_s_last_day'] / 3600:.1f} GPU-hours lost"
        facts.append(("victims", f"{report['victims_last_day']} in the last day, {lost}"))
    return facts


def _paused(pause: dict[str, Any], now: str) -> tuple[str, str]:
    kind = KINDS.get(pause.get("kind", "stop"))
    if kind is None:
        return "paused", f"paused {paused_text(pause)}"
    return kind, f"{paused_text(pause)} ({age(pause['at'], now)} ago)"


def _mode(report: dict[str, Any]) -> str:
    """What it means, as few people know the words; a broker of an earlier version says nothing and is active."""
    would, mode = report.get("would_move_nodes"), report.get("mode", "active")
    if mode == "dry_run":
        told = {None: "", 0: "; no node would move", 1: "; 1 node would move: bridgectl plan"}
        number = told.get(would, f"; {would} nodes would move: bridgectl plan")
        return f"dry_run: says what it would do, moves nothing{number}"
    if mode == "read_only":
        return "read_only: looks on, never leads, takes no orders"
    return str(mode)


def _going(report: dict[str, Any]) -> str:
    still = report.get("mode", "active") == "dry_run" and report["handoffs_live"]
    return "begun in mode active, standing still until a broker is active again" if still else "running"


def nodes(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this node, with all that is known of it")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Who owns each shared node, since when, and what it waits for."""
    broker = connect(context)
    if name is not None:
        _one_node(broker, name, output)
        return
    listing = broker.get("/v1/nodes")
    if output is Format.JSON:
        print_json(listing)
        return
    columns = (
        Column("NODE"),
        Column("OWNER"),
        Column("SINCE"),
        Column("STEP"),
        Column("NOTE"),
        Column("POOL", needed=False),
        Column("GPUS", needed=False),
        Column("IDLE", needed=False),
    )
    rows = [_node_row(node, listing["now"]) for node in listing["items"]]
    print_table(columns, rows, empty="no node is shared: apply a policy with `bridgectl policy apply FILE`")


def _node_row(node: dict[str, Any], now: str) -> list[str]:
    return [
        node["name"],
        node["owner"] or "not adopted",
        age(node["owner_since"], now),
        _step(node["handoff"]),
        _note(node, now),
        node["pool"],
        str(node["gpus"]),
        age(node["idle_since"], now),
    ]


def _step(handoff: dict[str, Any] | None) -> str:
    return f"{handoff['step']} to {handoff['destination']}" if handoff else ""


def _note(node: dict[str, Any], now: str) -> str:
    handoff = node["handoff"]
    notes = [*(handoff["blockers"] if handoff else ())]
    if node["unusable"]:
        notes.append(f"unusable: {node['unusable']}")
    if node.get("paused"):
        notes.append(f"paused: {node['paused']}")
    if node["backoff_until"] and moment(node["backoff_until"]) > moment(now):
        notes.append(f"left alone, tried again {until(node['backoff_until'], now)}")
    return "; ".join(notes)


def _one_node(broker: Broker, name: str, output: Format) -> None:
    node = broker.get(f"/v1/nodes/{_segment(name)}")
    if output is Format.JSON:
        print_json(node)
        return
    now = node["now"]
    lease, handoff = node["lease"], node["handoff"]
    facts = [
        ("node", node["name"]),
        ("owner", node["owner"] or "not adopted"),
        ("since", f"{age(node['owner_since'], now)} ago" if node["owner_since"] else ""),
        ("lease", f"{lease['id']}, epoch {lease['epoch']}, generation {lease['generation']}" if lease else ""),
        ("pool", f"{node['pool']}, {node['gpus']} GPUs"),
        ("in Kubernetes", node["kube_name"]),
        ("idle for", age(node["idle_since"], now)),
        ("note", _note(node, now)),
    ]
    if handoff:
        facts += [
            ("handoff", f"{handoff['id']}: {handoff['reason']}"),
            ("step", f"{_step(handoff)} for {age(handoff['step_began_at'], now)}"),
            ("deadline", until(handoff["step_deadline_at"], now)),
        ]
    facts += [("closed", f"{closure['side']} by {closure['mark']}") for closure in node["closures"]]
    print_facts(facts)


def handoffs(
    context: typer.Context,
    id: Annotated[str | None, typer.Argument(help="Only this handoff, with its steps and events")] = None,
    node: Annotated[str | None, typer.Option(help="Only handoffs of this node")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow until none of them runs any more")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Nodes on their way, and those that arrived or went back. With --watch exit code 1 if one did not arrive."""
    broker = connect(context)
    if watch:
        _watch(broker, id, node, output)
    elif id is not None:
        _one_handoff(broker, id, output)
    else:
        _list_handoffs(broker, node, output)


def _list_handoffs(broker: Broker, node: str | None, output: Format) -> None:
    listing = broker.get("/v1/handoffs", node=node)
    if output is Format.JSON:
        print_json(listing)
        return
    columns = (
        Column("ID"),
        Column("NODE"),
        Column("TO"),
        Column("STEP"),
        Column("BEGAN"),
        Column("TOOK"),
        Column("NOTE"),
        Column("REASON", needed=False),
        Column("BY", needed=False),
    )
    rows = [_handoff_row(handoff, listing["now"]) for handoff in listing["items"]]
    print_table(columns, rows, empty="no handoff yet")


def _handoff_row(handoff: dict[str, Any], now: str) -> list[str]:
    return [
        handoff["id"],
        handoff["node"],
        handoff["destination"],
        handoff["step"],
        age(handoff["began_at"], now),
        age(handoff["began_at"], handoff["ended_at"] or now),
        handoff["outcome"] or "; ".join(handoff["blockers"]),
        handoff["reason"],
        handoff["requested_by"],
    ]


def _one_handoff(broker: Broker, id: str, output: Format) -> None:
    handoff = broker.get(f"/v1/handoffs/{_segment(id)}")
    if output is Format.JSON:
        print_json(handoff)
        return
    now = handoff["now"]
    running = not handoff["ended_at"]
    print_facts(
        [
            ("handoff", handoff["id"]),
            ("node", f"{handoff['node']}: {handoff['source']} to {handoff['destination']}"),
            ("step", handoff["step"]),
            ("lease", f"{handoff['lease']}, generation {handoff['generation']}"),
            ("reason", f"{handoff['reason']} (by {handoff['requested_by']})"),
            ("began", f"{age(handoff['began_at'], now)} ago"),
            ("took", "" if running else age(handoff["began_at"], handoff["ended_at"])),
            ("deadline", until(handoff["step_deadline_at"], now) if running else ""),
            ("waits for", "; ".join(handoff["blockers"])),
            ("may end", "; ".join(victim["key"] for victim in handoff.get("victims", ()))),
            ("outcome", handoff["outcome"] or ""),
        ]
    )
    print_line()
    steps = [[step["step"], duration(step["duration_s"])] for step in handoff["steps"]]
    print_table((Column("STEP"), Column("TOOK")), steps, empty="no step yet")
    print_line()
    events = [[age(event["at"], now), event["message"]] for event in handoff["events"]]
    print_table((Column("AGO"), Column("EVENT")), events, empty="no event yet")


def _watch(broker: Broker, id: str | None, node: str | None, output: Format) -> None:
    """Print each change of the handoffs that run now, until all have ended."""
    seen: dict[str, Any] = {}
    events = broker.get("/v1/events", limit=1)["items"]
    last_event = events[-1]["id"] if events else 0
    watched = [id] if id else [each["id"] for each in broker.get("/v1/handoffs", node=node, live=True)["items"]]
    while watched:
        found = [broker.get(f"/v1/handoffs/{_segment(each)}") for each in watched]
        for handoff in found:
            now_is = (handoff["step"], handoff["blockers"])
            if seen.get(handoff["id"]) != now_is:
                _print_progress(handoff, output)
            seen[handoff["id"]] = now_is
        watched = [handoff["id"] for handoff in found if not handoff["ended_at"]]
        if watched:
            events = broker.get("/v1/events", after=last_event, wait_s=_POLL_S)["items"]
            last_event = events[-1]["id"] if events else last_event
    if any(step != "done" for step, _ in seen.values()):
        raise typer.Exit(REFUSED)


def _print_progress(handoff: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json_line({key: value for key, value in handoff.items() if key not in ("events", "steps")})
        return
    note = handoff["outcome"] or "; ".join(handoff["blockers"])
    took = age(handoff["began_at"], handoff["ended_at"] or handoff["now"])
    print_line(f"{took:>7}  {handoff['node']}  {handoff['step']} to {handoff['destination']}  {note}".rstrip())


def plan(context: typer.Context, output: Output = Format.TABLE) -> None:
    """What the leader would move now, and why the rest stays. Nothing moves because of this."""
    found = connect(context).get("/v1/plan")
    if output is Format.JSON:
        print_json(found)
        return
    if found.get("mode", "active") == "dry_run":
        print_line("The broker runs in dry_run: none of this is done.")
        print_line()
    moves = [[joined(move["nodes"]), move["source"], move["destination"], move["reason"]] for move in found["moves"]]
    columns = (Column("NODES"), Column("FROM"), Column("TO"), Column("REASON"))
    print_table(columns, moves, empty="nothing moves now")
    if found["whys"]:
        print_line()
        whys = [[why["subject"], why["reason"]] for why in found["whys"]]
        print_table((Column("STAYS"), Column("BECAUSE")), whys, empty="")


def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Begin with this many of the newest")] = 20,
    output: Output = Format.TABLE,
) -> None:
    """The event log. With --follow and -o json each event is one line."""
    broker = connect(context)
    listing = broker.get("/v1/events", limit=limit)
    if not follow:
        _list_events(listing, output)
        return
    # An interrupt is the only end there is, and so a good one.
    with suppress(KeyboardInterrupt):
        last_event = 0
        while True:
            for event in listing["items"]:
                last_event = event["id"]
                _print_event(event, output)
            listing = broker.get("/v1/events", after=last_event, wait_s=_POLL_S)


def _list_events(listing: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json(listing)
        return
    columns = (Column("AGO"), Column("KIND"), Column("MESSAGE"), Column("BY", needed=False))
    now = listing["now"]
    rows = [[age(event["at"], now), event["kind"], event["message"], event["actor"]] for event in listing["items"]]
    print_table(columns, rows, empty="no event yet")


def _print_event(event: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json_line(event)
        return
    at = moment(event["at"]).strftime("%Y-%m-%d %H:%M:%SZ")
    print_line(f"{at}  {event['kind']:<9}  {event['message']}")


def _segment(name: str) -> str:
    return quote(name, safe="")
