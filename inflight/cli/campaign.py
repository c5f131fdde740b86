"""Implements `inflight campaign`: one message for many clients (docs/guides/campaigns.md)."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from inflight.cli.history import Json
from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from streaming.terminal import counted, say, write_json, write_table

if TYPE_CHECKING:
    from inflight.campaign.outcomes import CampaignOutcomes
    from inflight.campaign.records import Campaign, CampaignTable, Progress
    from streaming.config.settings import Settings

app = typer.Typer(help="Send one message to many clients, at a rate, and stop if too many fail.", no_args_is_help=True)

CampaignId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The campaign; `inflight campaign status` lists them.")]


@app.command()
def start(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The campaign as TOML.")],
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Start a campaign and send it. After a kill or a pause, `resume` goes on."""
    from inflight.campaign.addresses import addressed, read_clients, read_subscribers
    from inflight.campaign.kafka import KafkaCampaigns
    from inflight.campaign.plan import read_plan
    from inflight.campaign.records import CampaignTable, campaign_record, list_records
    from inflight.campaign.run import CampaignRefused, new_campaign

    settings = load_for_running_system(config, overrides, data_dir)
    plan = read_plan(file)
    with KafkaCampaigns(settings) as topic:
        table = CampaignTable()
        table.read(topic.read())
        if plan.id in table.campaigns:
            raise CampaignRefused(f"campaign {plan.id} exists already: resume it, or give the new one another id")
        clients = addressed(
            plan.clients,
            settings,
            clients_with_session=lambda: read_clients(settings),
            subscribers=lambda name: read_subscribers(settings, name),
        )
        campaign = new_campaign(plan, len(clients), now_ms=time.time_ns() // 1_000_000)
        topic.note(f"campaign {plan.id} started, {counted(len(clients), 'client')},")
        topic.write([*list_records(plan.id, clients), campaign_record(campaign)])
    say(f"campaign {plan.id}: {counted(len(clients), 'client')}", err=True)
    _run(settings, plan.id)


@app.command()
def resume(campaign: CampaignId, data_dir: DataDir = None, config: Config = None, overrides: Overrides = None) -> None:
    """Go on with a campaign that was paused, or whose process has ended. No client gets the message twice."""
    from inflight.campaign.kafka import KafkaCampaigns

    settings = load_for_running_system(config, overrides, data_dir)
    _table(settings, campaign)
    with KafkaCampaigns(settings) as topic:
        topic.note(f"campaign {campaign} resumed")
    _run(settings, campaign)


@app.command()
def pause(campaign: CampaignId, data_dir: DataDir = None, config: Config = None, overrides: Overrides = None) -> None:
    """Let the process that sends a campaign stop. `resume` goes on."""
    from inflight.campaign.records import CampaignStatus

    _order(load_for_running_system(config, overrides, data_dir), campaign, CampaignStatus.PAUSED, "")


@app.command()
def abort(campaign: CampaignId, data_dir: DataDir = None, config: Config = None, overrides: Overrides = None) -> None:
    """End a campaign for good. What has been sent is delivered nevertheless."""
    from inflight.campaign.records import CampaignStatus

    _order(load_for_running_system(config, overrides, data_dir), campaign, CampaignStatus.ABORTED, "by an operator")


@app.command()
def status(
    campaign: Annotated[str | None, typer.Argument(metavar="ID", help="Only this one; default: all.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show how far campaigns have come, and what became of their messages."""
    from inflight.campaign.outcomes import ReceiptReader

    settings = load_for_running_system(config, overrides, data_dir)
    table = _table(settings, campaign)
    chosen = [one for one in table.campaigns.values() if campaign in (None, one.id)]
    with ReceiptReader(settings, chosen) as receipts:
        receipts.update()
    found = [(one, table.progress(one.id), receipts.outcomes[one.id]) for one in sorted(chosen, key=lambda one: one.created_ms)]
    if json:
        write_json(_document(*one) for one in found)
        return
    columns = ("id", "status", "clients", "sent", "unsent", "outcomes", "no_outcome", "reason")
    write_table(columns, [_row(*one) for one in found])


def _run(settings: "Settings", campaign_id: str) -> None:
    """Sends the campaign in this process, and prints its line of `status` at the end."""
    from inflight.campaign.kafka import KafkaCampaigns, ProducerSender
    from inflight.campaign.outcomes import ReceiptReader
    from inflight.campaign.run import CampaignRun
    from inflight.cli.logs import configure_logging
    from inflight.cli.send_display import producer_settings

    configure_logging()
    chosen = [_table(settings, campaign_id).campaigns[campaign_id]]
    with (
        KafkaCampaigns(settings) as topic,
        ProducerSender(settings, producer_settings(settings)) as sender,
        ReceiptReader(settings, chosen) as receipts,
    ):

        def outcomes(campaign: "Campaign") -> "CampaignOutcomes":
            if campaign.failed_share is not None:
                receipts.update()
            return receipts.outcomes[campaign_id]

        def show(campaign: "Campaign", progress: "Progress") -> None:
            say(f"{progress.sent - len(progress.unsent):,} of {campaign.clients:,} sent", err=True)

        try:
            ended = CampaignRun(campaign_id, topic, sender, outcomes, on_progress=show).run()
        except KeyboardInterrupt:
            say(f"interrupted: `inflight campaign resume {campaign_id}` goes on", err=True)
            raise
    say(f"campaign {campaign_id} is {ended.status}{f': {ended.reason}' if ended.reason else ''}")


def _order(settings: "Settings", campaign_id: str, wanted: Any, reason: str) -> None:
    from inflight.campaign.kafka import KafkaCampaigns
    from inflight.campaign.records import campaign_record
    from inflight.campaign.run import with_status

    ordered = with_status(_table(settings, campaign_id).campaigns[campaign_id], wanted, reason)
    with KafkaCampaigns(settings) as topic:
        topic.note(f"campaign {campaign_id} {wanted}")
        topic.write([campaign_record(ordered)])
    say(f"campaign {campaign_id} is {wanted}")


def _table(settings: "Settings", campaign_id: str | None) -> "CampaignTable":
    """Reads all campaigns. Raises CampaignRefused if there is none with this id."""
    from inflight.campaign.kafka import KafkaCampaigns
    from inflight.campaign.records import CampaignTable
    from inflight.campaign.run import CampaignRefused

    table = CampaignTable()
    with KafkaCampaigns(settings) as topic:
        table.read(topic.read())
    if campaign_id is not None and campaign_id not in table.campaigns:
        known: Iterable[str] = sorted(table.campaigns)
        raise CampaignRefused(f"there is no campaign {campaign_id}; there are: {', '.join(known) or 'none'}")
    return table


def _row(campaign: "Campaign", progress: "Progress", outcomes: "CampaignOutcomes") -> tuple[object, ...]:
    counted = ", ".join(f"{number:,} {outcome}" for outcome, number in outcomes.counts().items())
    sent = progress.sent - len(progress.unsent)
    waiting = max(0, sent - outcomes.known)
    return campaign.id, campaign.status, campaign.clients, sent, len(progress.unsent), counted, waiting, campaign.reason or None


def _document(campaign: "Campaign", progress: "Progress", outcomes: "CampaignOutcomes") -> dict[str, Any]:
    sent = progress.sent - len(progress.unsent)
    return {
        "id": campaign.id,
        "status": campaign.status,
        "reason": campaign.reason,
        "clients": campaign.clients,
        "sent": sent,
        "unsent": progress.unsent,
        "outcomes": outcomes.counts(),
        "no_outcome": max(0, sent - outcomes.known),
    }
