"""The stand-in for vLLM on targets that can't run it: same command line, endpoints and metrics, toy vectors."""
