"""The two sides of each comparison: own_* run in our environment through rlcore, the others are the peers."""
