"""serve.protocol: the Open Inference Protocol, version 2, over HTTP: tensors, inference requests and answers, metadata. Pure."""
