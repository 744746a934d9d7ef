"""embedfleet: an inventory plus group data becomes monitored, upgradable vLLM embedding servers.

The way of the data: settings and host facts -> one pure plan per host -> operations that change only what differs.
"""
