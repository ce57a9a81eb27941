"""Requests one by one: the schedules of a real engine on simulated time."""
