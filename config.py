"""Loaded by pyinfra before the inventory: the few things that have no effect anywhere later."""

from pyinfra import config

from embedfleet import connection

config.REQUIRE_PYINFRA_VERSION = "~=3.10"
# In a rolling step the first failed host stops the rollout and leaves the rest serving.
config.FAIL_PERCENT = 0
# Not /tmp: `docker cp` cannot see a container's tmpfs, and hosts mount /tmp noexec or small.
config.TEMP_DIR = "/var/tmp"

# A host that cannot be reached is that host's failure, told with its cure; the others go on.
connection.tell_unreachable_hosts()
connection.disable_nagle()
connection.ask_only_before_changes()
