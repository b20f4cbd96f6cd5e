"""Checks manifests against the Kubernetes API: every key is one of the API, every value has its type, what is required is
there.

The API is what the Python client of Kubernetes has of it: classes generated from the API's own OpenAPI document. Of the
Prometheus Operator's PodMonitor the fields that are used stand here.
"""

import json
import re

import kubernetes.client

KINDS = {("v1", "ConfigMap"): "V1ConfigMap", ("v1", "Service"): "V1Service", ("v1", "Secret"): "V1Secret",
         ("apps/v1", "StatefulSet"): "V1StatefulSet", ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
         ("policy/v1", "PodDisruptionBudget"): "V1PodDisruptionBudget"}
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float)}
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTPE]i?)?")
DURATION = re.compile(r"\d+(ms|s|m|h)")
POD_MONITOR = {"selector": "V1LabelSelector",
               "podMetricsEndpoints": [{"port": str, "path": str, "interval": DURATION, "scrapeTimeout": DURATION}]}


def class_named(name):
    return getattr(kubernetes.client, name)


def check_scalar(value, kind, where):
    if kind == "object":  # IntOrString and its like
        good = isinstance(value, (str, int)) and not isinstance(value, bool)
    elif kind == "datetime":
        good = isinstance(value, str)
    else:
        good = isinstance(value, PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not good:
        raise ValueError(f"{where} is {json.dumps(value)}, expected {kind}")


def check(value, kind, where):
    """errors: ValueError that names the place."""
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            raise ValueError(f"{where} is no list")
        for i, one in enumerate(value):
            check(one, found[1], f"{where}[{i}]")
    elif found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no map")
        for key, one in value.items():
            check(one, found[1], f"{where}.{key}")
    elif kind in PLAIN or kind in ("object", "datetime"):
        check_scalar(value, kind, where)
    else:
        check_object(value, class_named(kind), where)
    if where.rpartition(".")[0].endswith((".limits", ".requests")) and not QUANTITY.fullmatch(str(value)):
        raise ValueError(f"{where} is {value!r}, expected a quantity")


def check_object(value, model, where):
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no map")
    names = {key: name for name, key in model.attribute_map.items()}
    arguments = {}
    for key, one in value.items():
        if key not in names:
            raise ValueError(f"{where}.{key}: {model.__name__} has no such key")
        check(one, model.openapi_types[names[key]], f"{where}.{key}")
        arguments[names[key]] = one
    model(**arguments)  # refuses what lacks a required key


def check_fields(value, fields, where):
    """The same of a resource that has no class. fields: a kind, a pattern, a type, or nested lists and maps of these."""
    if isinstance(fields, str):
        check(value, fields, where)
    elif isinstance(fields, re.Pattern):
        if not (isinstance(value, str) and fields.fullmatch(value)):
            raise ValueError(f"{where} is {value!r}, expected {fields.pattern}")
    elif isinstance(fields, type):
        if not isinstance(value, fields):
            raise ValueError(f"{where} is {value!r}, expected {fields.__name__}")
    elif isinstance(fields, list):
        for i, one in enumerate(value):
            check_fields(one, fields[0], f"{where}[{i}]")
    else:
        for key, one in value.items():
            if key not in fields:
                raise ValueError(f"{where}.{key}: no such key is known")
            check_fields(one, fields[key], f"{where}.{key}")


def check_resource(resource):
    """errors: ValueError that names the kind and the place."""
    kind = resource.get("apiVersion"), resource.get("kind")
    if kind == ("monitoring.coreos.com/v1", "PodMonitor"):
        check(resource["metadata"], "V1ObjectMeta", "PodMonitor.metadata")
        check_fields(resource["spec"], POD_MONITOR, "PodMonitor.spec")
    elif kind in KINDS:
        check_object(resource, class_named(KINDS[kind]), kind[1])
    else:
        raise ValueError(f"{kind}: no kind that is known here")
