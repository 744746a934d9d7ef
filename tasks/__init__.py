"""One component, one file. Each takes the host's plan and declares operations; none decides anything."""
