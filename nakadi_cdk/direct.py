"""A public load balancer beside the gateway, for clients whose requests would make up most of the bill.

It forwards the paths of events, streams and commits to the streaming tasks, which check tokens themselves.
Everything else stays with the API.
"""

from __future__ import annotations

from http import HTTPStatus

import orjson
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_wafv2 as wafv2
from constructs import Construct

from nakadi.http.problem import plain_problem_members
from nakadi_cdk.api import Domain
from nakadi_cdk.streaming import IDLE_TIMEOUT, PORT, Streaming

HTTPS_PORT = 443

# The balancer's patterns are coarse; the service decides what a path really means.
PATHS = ("/event-types/*/events", "/subscriptions/*/events", "/subscriptions/*/cursors", "/subscriptions/*/streams/*")

UNSERVED_PATH_DETAIL = "Only events and commits are served at this host: everything else is at the address of the API"


class Direct(Construct):
    """The load balancer with TLS, its listener, and an optional web ACL."""

    def __init__(
        self, scope: Construct, name: str, *, streaming: Streaming, domain: Domain, web_acl_arn: str = ""
    ) -> None:
        super().__init__(scope, name)
        self.url = f"https://{domain.name}/"
        security_group = ec2.SecurityGroup(
            self,
            "OfBalancer",
            vpc=streaming.vpc,
            description="The load balancer that clients reach directly",
            allow_all_outbound=False,
        )
        security_group.add_ingress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS_PORT), "Clients, by TLS")
        security_group.add_egress_rule(streaming.security_group, ec2.Port.tcp(PORT))
        streaming.security_group.add_ingress_rule(security_group, ec2.Port.tcp(PORT))
        self.load_balancer = elb.ApplicationLoadBalancer(
            self,
            "Balancer",
            vpc=streaming.vpc,
            vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
            internet_facing=True,
            security_group=security_group,
            idle_timeout=IDLE_TIMEOUT,
            drop_invalid_header_fields=True,
        )
        self.target_group = streaming.create_target_group(self)
        status, content_type, body = unserved_path_answer()
        listener = self.load_balancer.add_listener(
            "Listener",
            port=HTTPS_PORT,
            protocol=elb.ApplicationProtocol.HTTPS,
            ssl_policy=elb.SslPolicy.TLS13_RES,
            certificates=[acm.Certificate.from_certificate_arn(self, "Certificate", domain.certificate_arn)],
            open=False,
            default_action=elb.ListenerAction.fixed_response(status, content_type=content_type, message_body=body),
        )
        listener.add_action(
            "Served",
            priority=1,
            conditions=[elb.ListenerCondition.path_patterns(list(PATHS))],
            action=elb.ListenerAction.forward([self.target_group]),
        )
        # ECS accepts the service only after both balancers have its target groups.
        streaming.service.node.add_dependency(listener)
        if web_acl_arn:
            wafv2.CfnWebACLAssociation(
                self, "Firewall", resource_arn=self.load_balancer.load_balancer_arn, web_acl_arn=web_acl_arn
            )


def unserved_path_answer() -> tuple[int, str, str]:
    """The load balancer's answer to paths that it does not serve: status, media type and body."""
    body = orjson.dumps(plain_problem_members(HTTPStatus.NOT_FOUND, UNSERVED_PATH_DETAIL)).decode()
    return HTTPStatus.NOT_FOUND.value, "application/json", body
