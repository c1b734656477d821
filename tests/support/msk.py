"""The permissions of the functions' roles in MSK, by IAM's names, and in the words of Kafka."""

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
"""What one may do in Kafka who may do the other; IAM asks for both."""
