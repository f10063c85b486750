"""A real gRPC server or client for tests/it/grpc.rs, on grpcio. Not a test by itself.

    peer.py server NAME        listens, prints its port, and answers every call with NAME
    peer.py client TARGET      calls TARGET over and over; for each line on stdin prints, as JSON, who answered how
                               often and what failed since the last one
"""

import collections
import json
import sys
import threading
import time
from concurrent import futures

import grpc

METHOD = "/tidegate.test.Who/Are"


def raw(message):
    return message


def server(name, address="127.0.0.1:0"):
    class Who(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: name.encode(), request_deserializer=raw, response_serializer=raw)

    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Who()], options=[("grpc.so_reuseport", 0)])
    print(server.add_insecure_port(address), flush=True)
    server.start()
    sys.stdin.read()


def client(target):
    counted, failed, lock = collections.Counter(), collections.Counter(), threading.Lock()
    channel = grpc.insecure_channel(target)
    call = channel.unary_unary(METHOD, request_serializer=raw, response_deserializer=raw)

    def work():
        while True:
            try:
                name = call(b"", timeout=20, wait_for_ready=not counted).decode()
                with lock:
                    counted[name] += 1
            except grpc.RpcError as error:
                with lock:
                    failed[f"{error.code().name}: {error.details()}"] += 1
            time.sleep(0.005)

    threading.Thread(target=work, daemon=True).start()
    for _ in sys.stdin:
        with lock:
            print(json.dumps({"by": counted, "failed": failed}), flush=True)
            counted.clear(), failed.clear()


{"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
