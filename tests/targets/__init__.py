"""The test rig: real targets (systemd in containers) and a local mirror of everything a deploy downloads."""
