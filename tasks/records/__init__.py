"""What a stage and a flow need to record: paths, parameters, traces, versions, runs."""
