"""What administrators decide: admins, blacklist, features and storages."""

READ_ONLY = "Database is currently in read-only mode"
