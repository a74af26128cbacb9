"""serve: model serving. How requests are batched, admitted, queued and routed to replicas, and how many replicas there are.

Policies are pure: the caller says what arrived, what completed and what time it is; the answer is what to dispatch now, whom to
refuse and when to ask again; they refuse to know sockets, clocks, what a model computes, and who pays for the devices.
``gateway`` and ``replica`` are the processes around them, ``protocol`` is what clients speak.
"""

MAY_IMPORT = ("base", "model", "estimate", "wire", "runtime")
