"""The CDK app: a stack of data, a stack that serves it, and a stack of jobs, made of the constructs of `nakadi_cdk`."""
