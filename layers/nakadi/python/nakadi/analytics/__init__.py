"""What the jobs on the archive share: the columns of events, the parts of the archive to read, and the tables."""
