"""wire: messages between processes and their codecs: the REST schema, the agent's calls, the client.

Must import without numpy, so that ``tide ps`` starts fast.
"""

MAY_IMPORT = ("base", "model")
