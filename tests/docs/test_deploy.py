"""Does the guide to AWS lead to a first event, where it needs no account?"""

import json
import re
from pathlib import Path

from nakadi.local import Broker
from tests.support.pasted import pasted

GUIDE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
FIRST_EVENT = GUIDE.partition("**4. The first event.**")[2].partition("\n## ")[0]
COMMANDS = [line for line in re.search(r"```sh\n(.*?)```", FIRST_EVENT, re.DOTALL)[1].splitlines() if "${URL}" in line]


def test_the_first_event_of_a_deployment_is_published_and_streamed():
    """An event type, a batch, and a stream that ends with the first event of a partition."""
    with Broker() as broker:
        made, published, streamed = [pasted(each, URL=f"{broker.url}/", TOKEN="t") for each in COMMANDS]

    assert (made[0], published[0], streamed[0]) == (201, 200, 200)
    assert len(json.loads(streamed[1].splitlines()[0])["events"]) == 1
