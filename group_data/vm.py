"""The emulated machine: the rig's login is root's."""

_sudo = False
