"""Draws what each device says and hears in a run with routing, all from one number.

Topics are `talk/ROOM/CORNER`, and `work/CORNER`, which is read by the members of one shared subscription alone. Pure: the same
seed gives the same devices.
"""

import random
from dataclasses import dataclass

ROOMS, CORNERS = 20, 4
MEAN_CHANGE_S = 10.0
"""Mean time between two changes of the subscriptions of a device."""
SHARED = "$share/crew/work/#"
_QOS = (0, 1, 1, 2, 2)
_MEMBERS, _MEMBERS_FOR_GOOD, _WORK = 0.3, 0.1, 0.15


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A subscription that a device asks for, now and then or for good: its filter and QoS, which do not change."""

    topic_filter: str
    qos: int
    is_for_good: bool = False


def subscriptions(seed: int, client_id: str) -> tuple[Asked, ...]:
    """Returns what a device subscribes to; several filters match topics of one room, so that a message has several reasons."""
    dice = random.Random(f"{seed}/{client_id}/talk")
    room, corner = dice.randrange(ROOMS), dice.randrange(CORNERS)
    for_good, *others = dice.sample((f"talk/{room}/+", f"talk/{room}/#", f"talk/{room}/{corner}"), 3)
    others += [_topic(dice), f"talk/+/{corner}" if dice.random() < 0.2 else _topic(dice)]
    changing = (Asked(topic_filter=each, qos=dice.choice(_QOS)) for each in dict.fromkeys(others) if each != for_good)
    first = Asked(topic_filter=for_good, qos=dice.choice(_QOS), is_for_good=True)
    luck = dice.random()
    shared = Asked(topic_filter=SHARED, qos=2, is_for_good=luck < _MEMBERS_FOR_GOOD)
    return (first, *((shared,) if luck < _MEMBERS else ()), *changing)


def topic_and_qos(dice: random.Random) -> tuple[str, int]:
    """Returns the topic and the QoS of one publication."""
    if dice.random() < _WORK:
        return f"work/{dice.randrange(CORNERS)}", 1 + dice.randrange(2)
    return _topic(dice), dice.choice(_QOS)


def _topic(dice: random.Random) -> str:
    return f"talk/{dice.randrange(ROOMS)}/{dice.randrange(CORNERS)}"
