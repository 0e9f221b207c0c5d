"""Protocols by which others offer tools to turns, or reach turns. Each needs an extra, imported when it is used."""
