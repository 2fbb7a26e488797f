# Runs a provider of OpenID Connect that is not ours, and logs in there. Prints its URL, and then for each line with the name of
# a user the ID token that the provider issues. The argument is the audience.
import secrets
import sys
from urllib.parse import parse_qs, urlparse

import httpx
import oidc_provider_mock

audience = sys.argv[1]

with oidc_provider_mock.run_server_in_thread() as server:
    url = f"http://localhost:{server.server_port}"
    print(url, flush=True)
    provider = httpx.get(f"{url}/.well-known/openid-configuration").json()
    httpx.put(f"{url}/users/anna", json={"groups": ["ops", "all"]}).raise_for_status()
    for name in map(str.strip, sys.stdin):
        back = "http://localhost/callback"
        query = {"client_id": audience, "response_type": "code", "scope": "openid", "redirect_uri": back}
        query["state"] = secrets.token_hex()
        answer = httpx.post(provider["authorization_endpoint"], params=query, data={"sub": name})
        code = parse_qs(urlparse(answer.headers["location"]).query)["code"][0]
        exchange = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
        tokens = httpx.post(provider["token_endpoint"], data=exchange, auth=(audience, "secret"))
        print(tokens.raise_for_status().json()["id_token"], flush=True)
