"""Where jobs come from.

Read in this order: `jobs` is the wire format of a job in a queue. `sqlite_queue`, `sqs_queue` and `redis_queue` are the
queue services, each a `headrace.base.protocols.Queue`; `addresses` opens one from a URL. `loans` keeps what was received
and not yet settled: acks in batches, extensions in time. `queue_source` joins a queue and its loans to the runtime as a
`Source`. `finite` is what sources that end have in common; `folder` and `urls` are two of them.

Nothing is imported here, so that a folder of images needs neither boto3 nor redis.
"""
