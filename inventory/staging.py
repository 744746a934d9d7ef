"""Staging: one host of each kind that production has, on which every change is tried first."""

grace: list = []
power: list = []
x86: list = ["embed-staging-01.example.net"]
