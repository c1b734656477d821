"""Archives events for all processes: from batches of a Kinesis stream, which it indexes, or on a schedule from
topics.
"""

import os

import nakadi.engines.dynamodb.log_index  # noqa: F401  # loaded while the function starts
from nakadi.app import log_indexer
from nakadi.app.functions import FunctionMetrics, HandleInvocation, LambdaFunction
from nakadi.app.settings import read_settings


def make_handler(_counts: FunctionMetrics) -> HandleInvocation:
    return log_indexer.make_indexing_handler(read_settings(os.environ))


handler = LambdaFunction("log_indexer", make_handler)
