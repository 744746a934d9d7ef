"""pyinfra inventory/prod.py uninstall.py: hosts as they were before embedfleet came; models and engines are deleted too."""

from tasks.uninstall import uninstall

uninstall()
