"""sinks.mqtt.pulse"""

import asyncio
import time

from sinks.mqtt.pulse import Pulse


def test_a_loop_that_was_held_up_is_late_by_as_much() -> None:
    async def observe() -> list[float]:
        late_ms: list[float] = []
        has_beaten = asyncio.Event()

        def beat(milliseconds: float) -> None:
            late_ms.append(milliseconds)
            has_beaten.set()

        pulse = Pulse(beat)
        pulse.start()
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is to be late
        await has_beaten.wait()
        pulse.stop()
        beats = len(late_ms)
        await asyncio.sleep(0.1)
        assert len(late_ms) == beats, "it has stopped"
        return late_ms

    assert asyncio.run(observe())[0] > 200


def test_a_pulse_that_never_started_can_be_stopped() -> None:
    async def stop() -> None:
        Pulse(lambda late_ms: None).stop()

    asyncio.run(stop())
