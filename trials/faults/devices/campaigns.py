"""Sends one campaign after the other to some of the devices, each in a process of its own that is killed again and again.

Who sends, what was sent, and to whom is in `inflight.campaigns`: the next process resumes there.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inflight.campaign.records import CampaignTable
from inflight.local.child_process import bound_to_parent
from trials.faults.account.facts import CampaignFacts, Sent

SHARE = 0.7
"""Share of the devices that a campaign addresses."""
_RATE, _BATCH = 3, 5
_LIVES_S = (3.0, 20.0)
"""How long a process lives at most; the first seconds are its start."""
_PAUSE_S = 1.0
_EXISTS, _IS_MISSING, _COMPLETE = b"exists already", b"there is no campaign", b"is complete"


@dataclass(kw_only=True)
class Begun:
    """A campaign. kills: of the processes that sent it."""

    campaign_id: str
    qos: int
    client_ids: tuple[str, ...]
    began_s: float
    kills: int = 0

    def facts(self, log: CampaignTable, copies: int) -> CampaignFacts:
        """log: what is in `inflight.campaigns`."""
        known, progress = log.campaigns.get(self.campaign_id), log.progress(self.campaign_id)
        mine = CampaignFacts(campaign_id=self.campaign_id, client_ids=self.client_ids, kills=self.kills, copies=copies)
        if known is None:
            return mine
        listed, unsent = tuple(log.clients(self.campaign_id)), frozenset(progress.unsent)
        return replace(mine, status=known.status.value, listed=listed, sent=progress.sent, unsent=unsent)

    def messages(self, log: CampaignTable) -> list[Sent]:
        """Returns what each client is to get, but for those to which nothing could be sent."""
        unsent = log.progress(self.campaign_id).unsent
        return [
            Sent(
                message_id=f"{self.campaign_id}/{client_id}",
                client_id=client_id,
                qos=self.qos,
                sent_s=self.began_s,
                campaign=self.campaign_id,
            )
            for client_id in self.client_ids
            if client_id not in unsent
        ]


class Campaigns:
    """begun: the campaigns, the last of which may not be complete."""

    def __init__(self, bootstrap_servers: str, client_ids: Sequence[str], directory: Path, *, seed: int) -> None:
        """directory: for files and logs."""
        self.begun: list[Begun] = []
        self._servers = bootstrap_servers
        self._client_ids = client_ids
        self._directory = directory
        self._dice = random.Random(f"{seed}/campaigns")

    async def run(self, stop: asyncio.Event) -> None:
        """Sends campaigns until stop is set and the last one is complete. No process that begins after that is killed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        while not stop.is_set():
            await self._send(self._next(), stop)

    def _next(self) -> Begun:
        count = max(1, round(SHARE * len(self._client_ids)))
        number = len(self.begun)
        begun = Begun(
            campaign_id=f"campaign-{number}",
            qos=1 + number % 2,
            client_ids=tuple(self._dice.sample(self._client_ids, count)),
            began_s=time.time(),
        )
        self.begun.append(begun)
        return begun

    async def _send(self, begun: Begun, stop: asyncio.Event) -> None:
        """Starts the campaign and resumes it until it is complete."""
        file = self._directory / f"{begun.campaign_id}.toml"
        clients = ", ".join(f'"{client_id}"' for client_id in begun.client_ids)
        file.write_text(
            f"rate = {_RATE}\nbatch = {_BATCH}\n[clients]\nlist = [{clients}]\n"
            f'[message]\ntopic = "cmd/campaign"\npayload = "{begun.campaign_id}"\nqos = {begun.qos}\n',
            encoding="utf-8",
        )
        is_known = False
        while True:
            said = await self._process(begun, ["resume", begun.campaign_id] if is_known else ["start", str(file)], stop)
            if _COMPLETE in said:
                return
            if _EXISTS in said or _IS_MISSING in said:
                is_known = _EXISTS in said
            else:  # it was killed, or Kafka is away: perhaps before the campaign was in the log
                is_known = True
                await asyncio.sleep(_PAUSE_S)

    async def _process(self, begun: Begun, words: list[str], stop: asyncio.Event) -> bytes:
        """Runs a process until it ends or is killed. Returns what it has said."""
        command = [sys.executable, "-m", "inflight", "campaign", *words]
        command += ["--data-dir", str(self._directory), "--set", f"kafka.bootstrap_servers={self._servers}"]
        with (self._directory / f"{begun.campaign_id}.log").open("a+b") as log:
            begins = log.seek(0, 2)
            process = await asyncio.create_subprocess_exec(
                *bound_to_parent(command), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), None if stop.is_set() else self._dice.uniform(*_LIVES_S))
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(process.pid, signal.SIGKILL)
                        begun.kills += 1
                    await process.wait()
            log.seek(begins)
            return log.read()
