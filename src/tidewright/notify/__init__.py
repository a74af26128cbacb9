"""notify: mails and webhooks about jobs, from a process of its own, so that nothing out there holds the controller up.

It follows the controller's events, keeps in a database what has been said of which job and what is still to be sent, and
sends it until it is accepted. It refuses to know how jobs are scheduled and to change anything of them.
"""

MAY_IMPORT = ("base", "model", "wire")
