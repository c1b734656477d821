"""Who may consume a subscription: subjects that may see and read the subscription, and that no administrator has
blocked.
"""

from __future__ import annotations

from nakadi.auth.permissions import Permissions
from nakadi.model.authorization import Operation, Subject
from nakadi.subscriptions.api.repository import Subscriptions

CONSUMER_BLOCKED_MESSAGE = "Application or subscription is blocked"


def require_reader(
    subscriptions: Subscriptions, permissions: Permissions, subscription_id: str, subject: Subject
) -> None:
    """Raise `NotPermitted` or `NotFound` unless a subject may consume a subscription. The block is checked first, so
    that a blocked subject does not find out whether the subscription exists."""
    found = subscriptions.find(subscription_id)
    permissions.require_consumer(subject, () if found is None else found.event_types, CONSUMER_BLOCKED_MESSAGE)
    subscription = found or subscriptions.get(subscription_id)
    permissions.require_all_operations((Operation.VIEW, Operation.READ), subscription.resource, subject)
