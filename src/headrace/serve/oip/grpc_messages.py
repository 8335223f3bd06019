"""The messages of the protocol over gRPC, made from a table by `protobuf`.

How this works: the table has the fields of `open_inference_grpc.proto` (KServe), and of Triton's messages for configuration and
statistics those that are answered here; on the wire they are the same messages. They are made in a pool of their own: a program
that imports a client of Triton or KServe beside headrace has other messages of the same names in the common pool, where the
second ones would be refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.base.errors import MissingExtra

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    raise MissingExtra("the Open Inference Protocol over gRPC", "grpc") from error

_PACKAGE = "inference"

#: {message: its fields}. A field of `map` is a repeated message of key and value, which is what a map is on the wire.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "ModelMetadataResponse": """string name = 1; repeated string versions = 2; string platform = 3;
        repeated TensorMetadata inputs = 4; repeated TensorMetadata outputs = 5""",
    "InferParameter": """oneof bool bool_param = 1; oneof int64 int64_param = 2; oneof string string_param = 3;
        oneof double double_param = 4; oneof uint64 uint64_param = 5""",
    "ParameterEntry": "string key = 1; InferParameter value = 2",
    "InferTensorContents": """repeated bool bool_contents = 1; repeated int32 int_contents = 2;
        repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; repeated uint64 uint64_contents = 5;
        repeated float fp32_contents = 6; repeated double fp64_contents = 7; repeated bytes bytes_contents = 8""",
    "InferTensor": """string name = 1; string datatype = 2; repeated int64 shape = 3;
        repeated ParameterEntry parameters = 4; InferTensorContents contents = 5""",
    "InferRequestedOutput": "string name = 1; repeated ParameterEntry parameters = 2",
    "ModelInferRequest": """string model_name = 1; string model_version = 2; string id = 3;
        repeated ParameterEntry parameters = 4; repeated InferTensor inputs = 5;
        repeated InferRequestedOutput outputs = 6; repeated bytes raw_input_contents = 7""",
    "ModelInferResponse": """string model_name = 1; string model_version = 2; string id = 3;
        repeated ParameterEntry parameters = 4; repeated InferTensor outputs = 5;
        repeated bytes raw_output_contents = 6""",
    "ModelConfigRequest": "string name = 1; string version = 2",
    "ModelConfigTensor": "string name = 1; DataType data_type = 2; repeated int64 dims = 4",
    "ModelConfigOutput": "string name = 1; DataType data_type = 2; repeated int64 dims = 3",
    "LatestVersions": "uint32 num_versions = 1",
    "ModelVersionPolicy": "LatestVersions latest = 1",
    "ModelDynamicBatching": "uint64 priority_levels = 4; uint64 default_priority_level = 5",
    "ModelConfig": """string name = 1; string platform = 2; ModelVersionPolicy version_policy = 3; int32 max_batch_size = 4;
        repeated ModelConfigTensor input = 5; repeated ModelConfigOutput output = 6;
        ModelDynamicBatching dynamic_batching = 11; string backend = 17""",
    "ModelConfigResponse": "ModelConfig config = 1",
    "ModelStatisticsRequest": "string name = 1; string version = 2",
    "StatisticDuration": "uint64 count = 1; uint64 ns = 2",
    "InferStatistics": """StatisticDuration success = 1; StatisticDuration fail = 2; StatisticDuration queue = 3;
        StatisticDuration compute_input = 4; StatisticDuration compute_infer = 5; StatisticDuration compute_output = 6;
        StatisticDuration cache_hit = 7; StatisticDuration cache_miss = 8""",
    "InferBatchStatistics": "uint64 batch_size = 1; StatisticDuration compute_infer = 3",
    "ModelStatistics": """string name = 1; string version = 2; uint64 last_inference = 3; uint64 inference_count = 4;
        uint64 execution_count = 5; InferStatistics inference_stats = 6; repeated InferBatchStatistics batch_stats = 7""",
    "ModelStatisticsResponse": "repeated ModelStatistics model_stats = 1",
    "RepositoryIndexRequest": "string repository_name = 1; bool ready = 2",
    "ModelIndex": "string name = 1; string version = 2; string state = 3; string reason = 4",
    "RepositoryIndexResponse": "repeated ModelIndex models = 1",
}
_DATA_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING", "BF16",
)  # fmt: skip
_FIELD = re.compile(r"(oneof |repeated )?(\w+) (\w+) = (\d+)")


def make_messages() -> Mapping[str, Any]:
    """Return {name: class} of all messages."""
    file = descriptor_pb2.FileDescriptorProto(name="headrace_open_inference.proto", package=_PACKAGE, syntax="proto3")
    data_type = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DATA_TYPES):
        data_type.value.add(name=f"TYPE_{name}", number=number)
    for name, fields in _MESSAGES.items():
        _add_fields(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _add_fields(message: Any, fields: str) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    for how, kind, name, number in _FIELD.findall(fields):
        label = kinds.LABEL_REPEATED if how == "repeated " else kinds.LABEL_OPTIONAL
        field = message.field.add(name=name, number=int(number), label=label)
        if kind in _MESSAGES or kind == "DataType":
            field.type_name = f".{_PACKAGE}.{kind}"
        else:
            field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
        if how == "oneof ":
            field.oneof_index = 0
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
