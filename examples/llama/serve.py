#!/usr/bin/env python3
"""Runs llama.cpp's own HTTP server on a model, in this process, until it is told to end.

    PYTHONPATH=$(python3 tests/parts.py llama) python3 examples/llama/serve.py --model target/tiny.gguf --port 9001

The server is C++ inside the module `xllamacpp`, and answers as `llama-server` does. SIGTERM ends the process at once,
since nothing here handles it: streams are cut, as by a server that does not drain.
"""

import argparse
import signal

import xllamacpp


def parameters(arguments):
    chosen = xllamacpp.CommonParams()
    chosen.model.path = arguments.model
    chosen.model_alias = {"tiny"}
    chosen.hostnames = ["127.0.0.1"]
    chosen.port = arguments.port
    chosen.n_parallel = arguments.parallel
    chosen.n_ctx = arguments.parallel * 2048
    # The model is tiny: one thread for each server leaves the machine to others.
    chosen.cpuparams.n_threads = 1
    chosen.cpuparams_batch.n_threads = 1
    # Whether it is warm is for its control plane to find out.
    chosen.warmup = False
    chosen.endpoint_metrics = True
    return chosen


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", required=True, help="a GGUF file")
    options.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    options.add_argument("--parallel", type=int, default=8, help="completions at a time (default: 8)")
    server = xllamacpp.Server(parameters(options.parse_args()))
    print(f"serving at {server.listening_address}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
