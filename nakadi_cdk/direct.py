"""A way in beside the gateway: a public load balancer with TLS, for those whose requests make most of the bill.

It reaches the tasks that serve streams, which check tokens themselves, and lets through only the paths of what they
serve here. Everything else stays with the API.
"""

from __future__ import annotations

from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_wafv2 as wafv2
from constructs import Construct

from nakadi_cdk.api import Domain
from nakadi_cdk.gateway_responses import elsewhere
from nakadi_cdk.streaming import IDLE, PORT, Streaming

TLS = 443

# A balancer looks at beginnings and ends of paths only; what they really are is decided by the service.
PATHS = ("/event-types/*/events", "/subscriptions/*/events", "/subscriptions/*/cursors", "/subscriptions/*/streams/*")


class Direct(Construct):
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
        security_group.add_ingress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(TLS), "Clients, by TLS")
        security_group.add_egress_rule(streaming.security_group, ec2.Port.tcp(PORT))
        streaming.security_group.add_ingress_rule(security_group, ec2.Port.tcp(PORT))
        self.load_balancer = elb.ApplicationLoadBalancer(
            self,
            "Balancer",
            vpc=streaming.vpc,
            vpc_subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC),
            internet_facing=True,
            security_group=security_group,
            idle_timeout=IDLE,
            drop_invalid_header_fields=True,
        )
        self.target_group = streaming.targets(self)
        status, content_type, body = elsewhere()
        listener = self.load_balancer.add_listener(
            "Listener",
            port=TLS,
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
        # The service is made when both of its balancers know it.
        streaming.service.node.add_dependency(listener)
        if web_acl_arn:
            wafv2.CfnWebACLAssociation(
                self, "Firewall", resource_arn=self.load_balancer.load_balancer_arn, web_acl_arn=web_acl_arn
            )
