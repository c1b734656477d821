"""The command line `nakadi`: a client of a broker's public HTTP API, and a way to start a broker on this machine."""
