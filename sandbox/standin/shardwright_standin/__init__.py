"""A stand-in for LLM engines on machines without GPUs: real command lines, real ranks, tiny model.

It plays TensorRT-LLM's tools and server, vLLM's and SGLang's for the sandbox's tests: same program
names, same strict flags (from tests/contracts), same folder layouts, refusals and endpoints. What
it computes is a small transformer in numpy, truly split over ranks. It never serves anybody and is
no part of the operator or of its image.
"""
