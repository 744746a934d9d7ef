"""A stand-in for vLLM: the package that embedfleet's test mirror serves where vLLM itself cannot run."""
