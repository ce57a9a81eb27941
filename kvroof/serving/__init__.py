"""Steps over time: what one request, many requests, one pool or two pools wait for.

TTFT, TPOT, ITL, queue, e2e and goodput are defined in `simulation/metrics.py`; they mean the same in every
form here. Closed forms have two words more. In a closed loop a fixed number of requests is always in the
system and the next starts when one ends; in an open loop requests come at a rate, whatever the system does.
Where queues grow without end at that rate there is no steady state: no mean exists, and none is given.
"""
