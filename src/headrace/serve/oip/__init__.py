"""The Open Inference Protocol, version 2 (KServe, Triton), over HTTP and gRPC.

    datatypes.py      the types of tensors; tensors <-> bytes
    messages.py       a request and its response as both transports see them
    json_tensors.py   tensors <-> JSON
    http_request.py   the body of an HTTP request -> a request
    http_response.py  a response -> the body of an HTTP answer
    models.py         which models a pipeline has, what they take and give
    items.py          tensors <-> the payloads and results of jobs
    inference.py      one request from its jobs to its response
    statistics.py     how many, and how long
    about.py          what the service says of itself
    routes.py         the routes of HTTP
    grpc_messages.py  the messages of gRPC
    grpc_codec.py     these messages <-> requests and responses
    grpc_front.py     the gRPC server (extra `grpc`)

A model is one task of the pipeline. A request of n items becomes n jobs, so that the run's own batches form over requests.
"""
