"""Speed and memory beside other tools, measured as ratios: `make bench`.

Every arm is a process of its own, the peers' in environments of their own. Nothing in this package imports the tests.
"""
