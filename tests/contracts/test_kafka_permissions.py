"""The roles of functions with a Kafka that checks permissions: their actions are sufficient, and each is needed.

IAM's actions are translated into ACLs, which an MSK server without IAM would have instead.
"""

from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import count

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from infra.laptop.kinesis_local import free_port
from nakadi.app.engines import open_event_log
from nakadi.common.waiting import run_blocking
from nakadi.model.events import AppendRefused
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock
from nakadi.ports.event_log import SealedTopic, UnknownTopic
from tests.support import kafka
from tests.support.engines import a_record
from tests.support.msk import ACLS, IMPLIED, MANAGE, READ, REMOVE, WRITE
from tests.support.patience import until

pytestmark = kafka.NOT_IN_EVERY_RUN

ROLES = {"read": READ, "remove": REMOVE, "write": WRITE, "manage": MANAGE}

STAGE = "nakadi-test."
USERS = 40

AN_AGE = timedelta(hours=1)


class SecuredServer:
    """A server that knows some users, who have no permissions before they are given ACLs; clients that do not sign in
    may do everything."""

    def __init__(self, folder):
        plain, signed, inner = free_port(), free_port(), free_port()
        users = " ".join(f'user_u{number}="p{number}"' for number in range(USERS))
        listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{signed}"
        protocols = ",".join(f"{name}:{name}" for name in ("PLAINTEXT", "SASL_PLAINTEXT"))
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        self._folder, self._users = folder, count()
        self.open, self._signed = f"127.0.0.1:{plain}", f"127.0.0.1:{signed}"
        self.server = kafka.OwnServer(
            folder,
            plain,
            {
                "controller.quorum.voters": f"1@127.0.0.1:{inner}",
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{inner}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocols}",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{login} required {users};",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )

    @contextmanager
    def log_of(self, actions, prefix=STAGE):
        """The event log of a role with these actions."""
        number = next(self._users)
        properties = self._folder / f"{number}.properties"
        properties.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u{number}\nsasl.password=p{number}\n"
        )
        self._allow(f"User:u{number}", actions)
        url = f"kafka://{self._signed}?timeout=5&prefix={prefix}&properties={properties}"
        with closing(open_event_log(url, SystemClock())) as log:
            yield log

    def _allow(self, user, actions):
        admin = AdminClient({"bootstrap.servers": self.open})
        of_topics = ResourceType.TOPIC, STAGE, ResourcePatternType.PREFIXED
        of_group = ResourceType.GROUP, "nakadi", ResourcePatternType.LITERAL
        wanted = [(*of_topics, ACLS[each]) for each in actions] + [(*of_group, "DESCRIBE")]
        bindings = [
            AclBinding(kind, name, pattern, user, "*", AclOperation[operation], AclPermissionType.ALLOW)
            for kind, name, pattern, operation in wanted
        ]
        for answer in admin.create_acls(bindings).values():
            answer.result(30)
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, user, None, AclOperation.ANY, AclPermissionType.ANY
        )
        until(lambda: len(admin.describe_acls(everything).result(30)) == len(bindings))


@pytest.fixture(scope="module")
def secured_server(tmp_path_factory):
    made = SecuredServer(tmp_path_factory.mktemp("kafka"))
    try:
        made.server.wait()
        yield made
    finally:
        made.server.end()


names = count()


@pytest.fixture
def topic(secured_server):
    """The name of a topic with an event, created by a log with all permissions."""
    name = f"t{next(names)}"
    with closing(open_event_log(f"kafka://{secured_server.open}?prefix={STAGE}", SystemClock())) as log:
        log.create_topic(name, 1)
        run_blocking(log.append(name, {0: [a_record("a", key="k")]}))
    return name


def read_first_event(log, topic):
    assert log.bounds(topic, [0])[0].next_offset == 1
    assert log.first_offset_since(topic, 0, SystemClock().now() + AN_AGE) == 1
    assert len(log.read(topic, 0, 0).events) == 1
    assert not log.read(topic, 0, 1).events


def trim_first_event(log, topic):
    log.trim(topic, 0, SystemClock().now() + AN_AGE)
    assert log.bounds(topic, [0])[0].oldest == 1


def append_event(log, topic):
    if isinstance(run_blocking(log.append(topic, {0: [a_record("b", key="k")]}))[0], AppendRefused):
        raise Unavailable("refused")


def find_end(log, topic):
    """Read the setting that says whether another process has sealed the topic."""
    seal = log._cluster.read_topic_configuration(topic)
    assert seal["max.message.bytes"] != "1"


def create_topic(log, topic):
    log.create_topic(f"{topic}-made", 1)


def add_partition(log, topic):
    log.add_partitions(topic, 2)


def compact_topic(log, topic):
    now = SystemClock().now()
    log.compact(topic, 0, stored_before=now - AN_AGE, tombstones_before=now - AN_AGE)


def seal_topic(log, topic):
    log.seal_topic(topic)
    with pytest.raises(SealedTopic):
        run_blocking(log.append(topic, {0: [a_record("c")]}))


def delete_topic(log, topic):
    log.delete_topic(topic)


WORK = {
    "read": [read_first_event],
    "remove": [read_first_event, trim_first_event],
    "write": [read_first_event, append_event, find_end],
    "manage": [read_first_event, append_event, create_topic, add_partition, compact_topic, seal_topic, delete_topic],
}

NEEDED_TO = {
    "AlterTopic": add_partition,
    "AlterTopicDynamicConfiguration": compact_topic,
    "CreateTopic": create_topic,
    "DeleteTopic": trim_first_event,
    "DescribeTopicDynamicConfiguration": find_end,
    "ReadData": read_first_event,
    "WriteData": append_event,
}


def is_refused(work, log, topic):
    try:
        work(log, topic)
    except (Unavailable, UnknownTopic):
        return True
    return False


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_enough(secured_server, topic, role):
    """A function does all its work in the topics of its stage, and nothing in other topics."""
    with secured_server.log_of(ROLES[role]) as log:
        for work in WORK[role]:
            work(log, topic)
    with secured_server.log_of(ROLES[role], prefix="others.") as log:
        assert is_refused(append_event, log, topic)
        assert is_refused(create_topic, log, topic)


@pytest.mark.parametrize(
    ("role", "left_out"),
    [
        (role, action)
        for role, actions in ROLES.items()
        for action in sorted(actions)
        if IMPLIED.get(action) not in actions
    ],
)
def test_a_role_has_nothing_to_spare(secured_server, topic, role, left_out):
    """Without one of its actions, a part of a function's work fails."""
    with secured_server.log_of(ROLES[role] - {left_out}) as log:
        assert is_refused(NEEDED_TO[left_out], log, topic)
