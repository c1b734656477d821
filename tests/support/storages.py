"""Descriptions of storages, by their type."""

from infra.laptop.synthesis import STAGE

STORAGES = {
    "embedded": {"storage_type": "embedded", "embedded_configuration": {}},
    "kinesis": {"storage_type": "kinesis", "kinesis_configuration": {"stream": f"nakadi-{STAGE}"}},
    "kafka": {"storage_type": "kafka", "kafka_configuration": {"bootstrap_servers": "kafka.example:9092"}},
}
