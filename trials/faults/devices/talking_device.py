"""A device that publishes to others, and changes its subscriptions now and then."""

from trials.faults.devices.device import Device, Wire
from trials.faults.devices.talking_session import TalkingSession
from trials.faults.plan.talk import MEAN_CHANGE_S, subscriptions, topic_and_qos


class TalkingDevice(Device):
    """A device in a run with routing."""

    session: TalkingSession

    def _new_session(self, seed: int) -> TalkingSession:
        self._subscriptions = subscriptions(seed, self._character.client_id)
        self._changes_s = 0.0
        return TalkingSession(facts=self.facts, wanted={each.topic_filter: each for each in self._subscriptions[:3]})

    def _topic_and_qos(self) -> tuple[str, int]:
        return topic_and_qos(self._dice)

    def _change(self, wire: Wire, now_s: float) -> None:
        """Subscribes, or unsubscribes."""
        if now_s < self._changes_s or wire.closed.is_set():
            return
        self._changes_s = now_s + self._dice.expovariate(1 / MEAN_CHANGE_S)
        asked = self._dice.choice([each for each in self._subscriptions if not each.is_for_good])
        wire.write(self.session.change(asked))
