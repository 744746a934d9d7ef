"""Where vLLM has the modules that a server imports."""
