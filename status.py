"""pyinfra inventory/prod.py status.py: platform, release, driver, health, drift, pending reboot; changes nothing."""

from tasks import status

status.status()
