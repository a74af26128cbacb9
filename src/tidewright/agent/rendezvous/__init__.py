"""Rendezvous of the ranks of a job: a key-value store that an agent serves, so that a rank can be moved without the others
noticing, and a coordinator that says to the ranks on each node where it is.

| module | what it is | input and output |
|---|---|---|
| `store` | KeyValueStore: the keys of one job and the table of operations on them | none |
| `waiting` | requests that wait for a key, a queue or a gather round, by what they wait for | none |
| `machine` | the server: events (messages.py) in, actions out; the states of a connection | none |
| `framing`, `journal_format` | bytes to frames, and a journal's bytes to a store | none |
| `server`, `journal` | sockets, timers and files for the machine | asyncio, files |
| `generations`, `polling` | the coordinator: generations of a job's keys; polls of another node's endpoint | none |
| `coordinator` | carries out what these say, and writes `reach.json` | peers, files |
"""
