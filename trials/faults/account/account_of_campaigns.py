"""Campaigns whose processes were killed: what is in `inflight.campaigns` → what of it must not be there. Pure.

That each client gets the message once says trials/faults/account/account.py: the messages of campaigns are among those sent.
"""

from collections.abc import Iterator

from trials.faults.account.facts import Facts, Violation

COMPLETE = "complete"


def violations(facts: Facts) -> Iterator[Violation]:
    """Yields campaigns that are not complete, or whose list is not the one with which they began."""
    for campaign in facts.campaigns:

        def wrong(what: str, campaign_id: str = campaign.campaign_id) -> Violation:
            return Violation(client_id=campaign_id, what=what)

        if campaign.status != COMPLETE:
            yield wrong(f"the campaign is {campaign.status or 'not in the log'} after {campaign.kills} kills")
        elif campaign.sent != len(campaign.client_ids):
            yield wrong(f"complete with {campaign.sent} of {len(campaign.client_ids)} clients")
        if campaign.status and campaign.listed != campaign.client_ids:
            yield wrong("its list is not the one with which it began")
        for client_id in campaign.unsent - set(campaign.client_ids):
            yield wrong(f"unsent to {client_id}, which it does not address")
