"""What stands while nobody looks: servers, worker, deployments, GPU slots, messages."""
