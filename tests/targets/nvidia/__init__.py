"""apt and rpm repositories with small stand-ins for NVIDIA's packages: real names, versions, dependencies and traces."""
