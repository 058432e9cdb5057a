"""`/openapi.json` and `/metrics`."""

from __future__ import annotations

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from prometheus_client.parser import text_string_to_metric_families

from juice_sim import openapi, rest_agents, rest_extras, rest_pools, rest_sessions, rest_tokens

V1 = {
    ("GET", "/health"),
    ("GET", "/v1/status"),
    ("GET", "/status"),
    ("POST", "/v1/register/agent"),
    ("GET", "/v1/agent/{id}"),
    ("PUT", "/v1/agent/{id}"),
    ("GET", "/v1/agents"),
    ("POST", "/v1/request/session"),
    ("GET", "/v1/session/{id}"),
    ("DELETE", "/v1/session/{id}"),
    ("PUT", "/v1/pool"),
    ("GET", "/v1/pool/{id}"),
    ("DELETE", "/v1/pool/{id}"),
    ("GET", "/v1/pool/{id}/permissions"),
    ("GET", "/v1/user/permissions/{id}"),
    ("PUT", "/v1/user/permissions"),
    ("DELETE", "/v1/user/permissions"),
}


@pytest.fixture
def document(admin):
    return admin.ok("GET", "/openapi.json")


def test_document_is_valid(document):
    assert document["openapi"].startswith("3.1")
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_document_has_every_route_and_no_other(document):
    modules = (rest_agents, rest_extras, rest_pools, rest_sessions, rest_tokens)
    routes = {(method, path) for module in modules for method, path, _, _ in module.ROUTES}
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == routes


def test_extensions_are_marked(document):
    unmarked = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not operation.get("x-juice-extension")
    }
    assert unmarked == V1
    members = document["components"]["schemas"]["SessionRequirements"]["properties"]
    marked = {name for name, schema in members.items() if schema.get("x-juice-extension")}
    assert marked == {"labelSelector", "vramStrict", "sessionTimeout", "name"}
    assert set(members) - marked == {"version", "poolId", "gpus", "matchLabels", "tolerates"}


def test_document_is_made_once():
    assert openapi.document() is openapi.document()
    msgspec.json.encode(openapi.document())


def metrics(admin):
    values = {}
    for family in text_string_to_metric_families(admin("GET", "/metrics").text):
        for sample in family.samples:
            values[sample.name, tuple(sample.labels.values())] = sample.value
    return values


def test_metrics_carry_the_documented_names(admin, pool, agent_type):
    agent = agent_type(admin, pool, gpus=2)
    agent.register()
    first = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": 1 << 30}]})
    admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": 1 << 50}]})
    agent.start_all()
    used = {"vramUsed": 1 << 30, "utilizationGpu": 80, "powerDraw": 100_000}
    admin.ok("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "gpus": [used, {}]})
    found = metrics(admin)
    p, name = "Juice_Controller_", "NVIDIA A10"
    expected = {
        (p + "agents", ()): 1,
        (p + "agentsByStatus", ("active",)): 1,
        (p + "agentsByStatus", ("missing",)): 0,
        (p + "sessions", ()): 2,
        (p + "sessionsByStatus", ("active",)): 1,
        (p + "sessionsByStatus", ("queued",)): 1,
        (p + "gpus", ()): 2,
        (p + "gpusByGpuName", (name,)): 2,
        (p + "vram", ()): 48 << 30,
        (p + "vramByGpuName", (name,)): 48 << 30,
        (p + "vramUsed", ()): 1 << 30,
        (p + "vramUsedByGpuName", (name,)): 1 << 30,
        (p + "vramGBAvailable", ("100",)): (24 << 30) / 1e9,
        (p + "vramGBAvailableByGpuName", (name, "10")): (23 << 30) / 1e9,
        (p + "utilization", ()): 40,
        (p + "utilizationByGpuName", (name,)): 40,
        (p + "powerDrawWatts", ()): 100,
        (p + "powerDrawWattsByGpuName", (name,)): 100,
    }
    assert {key: found[key] for key in expected} == expected
    admin.ok("DELETE", f"/v1/session/{first}")
    agent.start_all()
    assert metrics(admin)[p + "vramUsed", ()] == 0


def test_metrics_of_an_empty_controller(admin):
    found = metrics(admin)
    assert found["Juice_Controller_gpus", ()] == 0
    assert found["Juice_Controller_vramGBAvailable", ("50",)] == 0


def test_metrics_count_faults_by_name(admin):
    rules = [
        {"name": "busy", "path": "/v1/pools", "action": "empty"},
        {"name": "busy", "path": "/x", "action": "empty"},
    ]
    admin.ok("PUT", "/v1/faults", rules)
    admin("GET", "/v1/pools")
    assert metrics(admin)["Juice_Controller_faultsFired_total", ("busy",)] == 1
