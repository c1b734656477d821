"""The AWS deployment on one machine: local processes stand in for the resources of the templates."""
