"""CloudEvents 1.0: where the metadata of an event contains their attributes. https://cloudevents.io

| attribute | in the metadata |
|---|---|
| `id` | `eid`; beside it in `cloudevent` if it is not a UUID |
| `time` | `occurred_at` |
| `traceparent`, `tracestate` | `span_ctx` |
| `partition` | `partition` |
| `partitionkey` | `partition_compaction_key` if the event type is compacted, else `cloudevent` |
| `source`, `type`, `subject`, `dataschema`, `datacontenttype`, others | `cloudevent` |
"""

from __future__ import annotations

import re

SPECIFICATION_VERSION = "1.0"

EVENT_MEDIA_TYPE = "application/cloudevents+json"
BATCH_MEDIA_TYPE = "application/cloudevents-batch+json"

ATTRIBUTES_MEMBER = "cloudevent"
TRACE_MEMBER = "span_ctx"
TRACE_ATTRIBUTES = ("traceparent", "tracestate")
PARTITION_KEY_ATTRIBUTE = "partitionkey"

POSITION_ATTRIBUTES = ("offset", "eventtype", "cursortoken")
"""Attributes that name the place where a CloudEvent was read, besides `partition`.

They are dropped when it is published again, because it then has another place.
"""

is_attribute_name = re.compile(r"[a-z0-9]{1,100}", re.ASCII).fullmatch
find_control_character = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
"""Finds a control character, which the text of an attribute must not have."""
