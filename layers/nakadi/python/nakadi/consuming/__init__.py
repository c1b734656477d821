"""Consuming: the streams of subscriptions. They share what subscriptions coordinate, and read what streams read."""
