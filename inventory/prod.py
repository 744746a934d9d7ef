"""Production. Put your hosts' names in; every setting of embedfleet can stand beside a host or in group_data/.

grace = [("gh200-01.example.net", {"platform": "gh200"})]
"""

grace: list = []
power: list = []
x86: list = ["embed-01.example.net"]
