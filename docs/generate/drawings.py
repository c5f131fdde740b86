"""Makes the pictures of docs/pictures/ that show the parts, the ways of a message, and the states of an exchange."""

from collections.abc import Mapping
from enum import Enum
from itertools import pairwise

from docs.generate.drawing import LINE, Drawing
from state.transitions import ABANDONED, INBOUND, OUTBOUND, AbandonedPhase, InboundPhase, OutboundPhase


def architecture() -> str:
    """Draws the parts and what they send to each other."""
    d = Drawing(960, 312, "The parts of Inflight: backends, topics of Kafka, engine, gateways, devices")
    backend = d.box(20, 110, 130, "Backends", "any Kafka client", "or the Producer", kind="outside")
    to = d.box(220, 20, 190, "Kafka, towards devices", "messages, publications", kind="kafka")
    back = d.box(220, 205, 190, "Kafka, from Inflight", "receipts, dead letters,", "uplink, throttle, ledger", kind="kafka")
    engine = d.box(480, 205, 190, "Engine on Spark", "one session per client,", "in a checkpoint")
    d.box(480, 112, 190, "Kafka, inside", "events, commands", kind="kafka")
    gateway = d.box(480, 20, 190, "Gateways", "sockets, fast path, matcher")
    d.box(780, 14, 150, "Devices", "MQTT 3.1.1 and 5,", "TCP, TLS, WebSocket", kind="outside")
    broker = d.box(780, 112, 150, "Your broker", "by inflight bridge", kind="outside")
    archive = d.box(780, 205, 150, "Archive", "Delta tables, SQL", "(off by default)")
    d.arrow(backend.top, (85, 42), (220, 42))
    d.arrow((220, 235), (85, 235), (85, 170))
    d.arrow(to.right, gateway.left, label="fast")
    d.arrow((360, 65), (360, 185), (450, 185), (450, 225), (480, 225))
    d.text(350, 130, "by micro-batches", anchor="end")
    d.arrow((510, 65), (510, 88), (430, 88), (430, 215), (410, 215))
    d.text(436, 102, "uplink")
    d.arrow((575, 65), (575, 112), both=True)
    d.arrow((575, 157), (575, 205), both=True)
    d.arrow(engine.left, back.right)
    d.arrow(gateway.right, (780, 42), label="PUBLISH", both=True)
    d.arrow((670, broker.left[1]), broker.left, label="bridge", both=True)
    d.arrow((670, 235), archive.left)
    d.text(
        20,
        300,
        "Devices and backends get their acknowledgement when all in-sync replicas have the record. Sessions and offsets are committed together.",
    )
    return d.svg()


def ways() -> str:
    """Draws the fast and the slow way of a message, one station after the other."""
    d = Drawing(960, 400, "The two ways of a message to a device: fast by the gateway, slow by a micro-batch")
    fast = [
        ("messages", ("the backend's", "record"), "kafka"),
        ("router", ("offers it to the", "connection"), ""),
        ("gateway", ("the session's", "grant covers it"), ""),
        ("events", ("FastSent, with", "the message"), "kafka"),
        ("PUBLISH", ("to the device,", "after Kafka has it"), "outside"),
        ("session", ("adopts it later,", "in a micro-batch"), ""),
    ]
    slow = [
        ("messages", ("the same", "record"), "kafka"),
        ("session", ("window or queue,", "in a micro-batch"), ""),
        ("commands", ("SendPublish", ""), "kafka"),
        ("gateway", ("send quota of", "the wire"), ""),
        ("PUBLISH", ("to the device", ""), "outside"),
    ]
    after = [
        ("PUBACK", ("from the device", ""), "outside"),
        ("events", ("its record", ""), "kafka"),
        ("session", ("ends the exchange", ""), ""),
        ("receipts", ("delivered; ledger", ""), "kafka"),
    ]
    for number, (title, row) in enumerate(
        (
            ("Fast, the normal way: the device is online, and nothing older waits for it. Milliseconds.", fast),
            (
                "Slow: the device was offline, the gateway is under pressure, or the message is special. A quarter to half a second.",
                slow,
            ),
            ("Back, for both. QoS 2 has PUBREC, PUBREL and PUBCOMP instead.", after),
        )
    ):
        y = 30 + number * 125
        d.text(20, y - 10, title, kind="head")
        boxes = [d.box(20 + 157 * place, y, 125, name, *lines, kind=kind) for place, (name, lines, kind) in enumerate(row)]
        for one, next_one in pairwise(boxes):
            d.arrow(one.right, next_one.left)
    return d.svg()


Table = Mapping[tuple[Enum, Enum], tuple[Enum, Enum]]


def states(table: Table, absent: Enum, title: str) -> str:
    """Draws a table of transitions: a row for each phase, with what leads into it, what it stays in, and what ends it."""
    phases = [phase for phase in type(absent) if phase is not absent]
    rows, y = [], 56
    for phase in phases:
        begins = [event.name for (source, event), (target, _) in table.items() if source is absent and target is phase]
        stays = [
            f"{event.name}: {action.name}"
            for (source, event), (target, action) in table.items()
            if source is target is phase and action.name != "PROTOCOL_ERROR"
        ]
        ends = [
            f"{event.name}: {action.name}"
            for (source, event), (target, action) in table.items()
            if source is phase and target is absent and action.name != "PROTOCOL_ERROR"
        ]
        moves = [
            (target, f"{event.name}: {action.name}")
            for (source, event), (target, action) in table.items()
            if source is phase and target not in (phase, absent)
        ]
        height = max(30 + LINE * len(stays), LINE * len(ends) + 12, LINE * len(begins) + 12, 44)
        rows.append((phase, begins, stays, ends, moves, y, height))
        y += height + 46
    d = Drawing(960, y, title)
    d.text(20, 22, title, kind="head")
    d.text(110, 44, "begins by", anchor="middle")
    d.text(400, 44, "phase, and what changes nothing in it (trigger: action)", anchor="middle")
    d.text(770, 44, "ends by (trigger: action)")
    boxes = {phase: d.box(230, top, 360, phase.name, *stays, height=height) for phase, _, stays, _, _, top, height in rows}
    for phase, begins, _, ends, moves, _, _ in rows:
        box = boxes[phase]
        if begins:
            d.arrow((200, box.left[1]), box.left)
            for number, name in enumerate(begins):
                d.text(195, box.left[1] + 4 + LINE * number - LINE * (len(begins) - 1) // 2, name, anchor="end")
        if ends:
            d.arrow(box.right, (650, box.right[1]))
            for number, name in enumerate(ends):
                d.text(660, box.right[1] + 4 + LINE * number - LINE * (len(ends) - 1) // 2, name)
        for target in dict.fromkeys(target for target, _ in moves):
            other, labels = boxes[target], [label for aim, label in moves if aim is target]
            is_down = other.y > box.y
            x, start, end = (330, box.y + box.height, other.y) if is_down else (480, box.y, other.y + other.height)
            d.arrow((x, start), (x, end))
            for number, label in enumerate(labels):
                d.text(x + 6, (start + end) // 2 + 4 + LINE * number - LINE * (len(labels) - 1) // 2, label)
    return d.svg()


def outbound() -> str:
    return states(OUTBOUND, OutboundPhase.ABSENT, "To the client, for each packet id")


def inbound() -> str:
    return states(INBOUND, InboundPhase.ABSENT, "From the client, QoS 2, for each packet id")


def abandoned() -> str:
    return states(ABANDONED, AbandonedPhase.ABSENT, "Exchanges of messages that were given up, for each packet id")
