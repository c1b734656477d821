"""The AWS deployment on one machine: local processes replace the resources of the templates."""
