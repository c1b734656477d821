"""The IAM permissions for MSK that the functions' roles have, and the Kafka operations that they correspond to."""

READ = frozenset({"DescribeTopic", "ReadData"})
REMOVE = READ | {"DeleteTopic"}
WRITE = READ | {"DescribeTopicDynamicConfiguration", "WriteData"}
MANAGE = WRITE | {"AlterTopic", "AlterTopicDynamicConfiguration", "CreateTopic", "DeleteTopic"}

ACLS = {
    "AlterTopic": "ALTER",
    "AlterTopicDynamicConfiguration": "ALTER_CONFIGS",
    "CreateTopic": "CREATE",
    "DeleteTopic": "DELETE",
    "DescribeTopic": "DESCRIBE",
    "DescribeTopicDynamicConfiguration": "DESCRIBE_CONFIGS",
    "ReadData": "READ",
    "WriteData": "WRITE",
}

IMPLIED = {"DescribeTopic": "ReadData", "DescribeTopicDynamicConfiguration": "AlterTopicDynamicConfiguration"}
"""In Kafka, the second operation of a pair includes the first; IAM requires a permission for each."""
