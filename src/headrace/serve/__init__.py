"""The same pipeline behind HTTP: requests become jobs, results become answers.

    http/         the front: bytes <-> requests; knows nothing of pipelines
    door.py       where requests of every protocol are let in as jobs, or refused
    source.py     the Source that gives these jobs to the run
    reply.py      the Delivery that gives results back to the requests
    ids.py        ids of requests that name none
    jobs_api.py   /v1/jobs: image bytes, forms, JSON; answers at once or later
    npy.py        NumPy files -> arrays, for pipelines that take these
    server_timing.py  where the time of an answer went, for clients that ask
    oip/          the Open Inference Protocol, version 2
    feedback_api.py  /v1/feedback: what users say of answers
    openapi/      /openapi.json: what routes there are
    page/         the page at /, on which people try it
    health.py     /livez and /readyz
    service.py    joins all of it
    asgi.py       the same inside an application of the user's own
    queue_api.py  the API in front of a queue

A new protocol is a module that adds routes: each handler reads a `Request`, submits `Work` at the `Door`, and answers when it
hears how that ended.
"""
