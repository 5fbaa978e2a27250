"""The operators of ONNX that are not recurrent, by kind: each row translates a node."""
