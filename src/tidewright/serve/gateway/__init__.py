"""serve.gateway: requests over HTTP to replicas: batched, admitted and routed by the policies of this room."""
