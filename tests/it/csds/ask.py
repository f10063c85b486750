"""A real client of CSDS for tests/it/csds.rs, on grpcio and xds-protos. Not a test by itself.

    ask.py ADDRESS NODE ...     asks who these nodes are and what they hold (all, if there is none), by both methods;
                                prints the answer as JSON: node id, agent version, and type, name, version and states
"""

import json
import sys

import grpc
from envoy.admin.v3 import config_dump_shared_pb2 as shared
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from envoy.type.matcher.v3 import node_pb2, string_pb2

address, *nodes = sys.argv[1:]
matchers = [node_pb2.NodeMatcher(node_id=string_pb2.StringMatcher(exact=node)) for node in nodes]
request = csds_pb2.ClientStatusRequest(node_matchers=matchers)
with grpc.insecure_channel(address) as channel:
    stub = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel)
    fetched = stub.FetchClientStatus(request, timeout=20)
    streamed = list(stub.StreamClientStatus(iter([request, request]), timeout=20))
assert streamed == [fetched, fetched], (streamed, fetched)


def resource(held):
    return {
        "type": held.type_url.rsplit(".", 1)[1], "name": held.name, "version": held.version_info,
        "config": csds_pb2.ConfigStatus.Name(held.config_status),
        "client": shared.ClientResourceStatus.Name(held.client_status),
        "refused": held.error_state.version_info, "words": held.error_state.details,
    }


print(json.dumps([
    {
        "node": config.node.id, "version": config.node.user_agent_version,
        "resources": [resource(held) for held in config.generic_xds_configs],
    }
    for config in fetched.config
]))
