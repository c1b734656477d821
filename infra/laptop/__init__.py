"""The deployment on a laptop: what the templates say, carried out by processes of this machine."""
