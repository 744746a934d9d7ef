"""embedfleetctl: the part of embedfleet that lives on a host. Standard library only, Python 3.9 or newer."""
