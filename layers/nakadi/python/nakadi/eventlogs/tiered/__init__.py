"""One log of two halves: a hot one that takes events, and the archive with those that are older."""
