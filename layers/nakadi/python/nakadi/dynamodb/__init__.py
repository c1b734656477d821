"""What all engines on DynamoDB share: tables, models bound to them, and calls that end."""
