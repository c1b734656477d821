"""The deployment on AWS: one stack that keeps things, one that serves them, one construct per capability."""
