"""What holds for every host. Every setting and its default: docs/settings.md."""

_sudo = True  # commands run as root; the login needs passwordless sudo
