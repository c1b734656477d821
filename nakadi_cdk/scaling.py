"""Scaling of consumers by the pressure on their subscription."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_ecs as ecs

METRIC = "SubscriptionPressure"


def scale_on_pressure(
    tasks: ecs.ScalableTaskCount,
    subscription: str,
    *,
    stage: str,
    target: float = 0.5,
    scale_in_cooldown: Duration | None = None,
    scale_out_cooldown: Duration | None = None,
) -> scaling.CfnScalingPolicy:
    """Keep as many tasks of a consumer as its subscription needs: more while events wait for longer than the `target`
    share of what the objective allows, fewer while they wait for less.

    tasks = service.auto_scale_task_count(min_capacity=1, max_capacity=4)
    scale_on_pressure(tasks, "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11", stage="live")

    :param tasks: The number of tasks of an ECS service. More tasks than partitions do not help.
    :param subscription: The id of the subscription. It needs an objective, and the annotation
        `nakadi.io/pressure-metric` with the value `on`.
    :param stage: The stage of the broker, as in its context.
    :param target: The pressure to keep. Default: 0.5.
    :param scale_in_cooldown: The time between two steps to fewer tasks. Default: five minutes, the interval at which
        housekeeping publishes the pressure.
    :param scale_out_cooldown: The time between two steps to more tasks. Default: five minutes.
    """
    scalable = tasks.node.find_child("Target")
    assert isinstance(scalable, scaling.ScalableTarget)
    policy = scaling.CfnScalingPolicy
    pressure = policy.TargetTrackingMetricStatProperty(
        metric=policy.TargetTrackingMetricProperty(
            namespace=f"nakadi-{stage}",
            metric_name=METRIC,
            dimensions=[
                policy.TargetTrackingMetricDimensionProperty(name="service", value="housekeeping"),
                policy.TargetTrackingMetricDimensionProperty(name="subscription", value=subscription),
            ],
        ),
        stat="Maximum",
    )
    # Housekeeping publishes a value every five minutes, and target tracking reads the metric every minute.
    filled = policy.TargetTrackingMetricDataQueryProperty(id="filled", expression="FILL(pressure, REPEAT)")
    read = policy.TargetTrackingMetricDataQueryProperty(id="pressure", metric_stat=pressure, return_data=False)
    return policy(
        tasks,
        "OnPressure",
        policy_name=f"{METRIC}-{subscription}",
        policy_type="TargetTrackingScaling",
        scaling_target_id=scalable.scalable_target_id,
        target_tracking_scaling_policy_configuration=policy.TargetTrackingScalingPolicyConfigurationProperty(
            customized_metric_specification=policy.CustomizedMetricSpecificationProperty(metrics=[read, filled]),
            target_value=target,
            scale_in_cooldown=(scale_in_cooldown or Duration.minutes(5)).to_seconds(),
            scale_out_cooldown=(scale_out_cooldown or Duration.minutes(5)).to_seconds(),
        ),
    )
