# Gets an X.509-SVID and a trust bundle by a client of the Workload API that is not ours, and calls an agent with them by grpcio.
# Prints the agent's answer to GetAgent, and leaves the certificates as PEM files in a directory.
import functools
import sys
from pathlib import Path

import grpc

# the HTTP/2 library of our stand-in refuses the path of a socket, which grpcio has as the authority
grpc.insecure_channel = functools.partial(grpc.insecure_channel, options=[("grpc.default_authority", "localhost")])

from cryptography.hazmat.primitives.serialization import Encoding
from spiffe import WorkloadApiClient

socket, address, name, directory = sys.argv[1:]
files = [Path(directory, file) for file in ("bundle.pem", "svid.key", "svid.pem")]
bundle, key, chain = files
with WorkloadApiClient(socket) as client:
    context = client.fetch_x509_context()
svid = context.default_svid
svid.save(chain, key, Encoding.PEM)
trusted = context.x509_bundle_set.get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
trusted.save(bundle, Encoding.PEM)
print(svid.spiffe_id, flush=True)
credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
with grpc.secure_channel(address, credentials, [("grpc.ssl_target_name_override", name)]) as channel:
    call = channel.unary_unary("/telexec.v1.AgentService/GetAgent", lambda _: b"", lambda answer: answer)
    print(call(None, timeout=20))
