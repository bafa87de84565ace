"""Values in the wire format of schema registries: what a job declares of them, the registry, and their decoding."""
