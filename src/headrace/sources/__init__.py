"""Where jobs come from.

Read in this order: `jobs` is the wire format of a job in a queue. `sqlite_queue`, `sqs_queue` and `redis_queue` are the queue
services, each a `headrace.base.protocols.Queue`; `addresses` opens one from its address, by a scheme of `schemes` or of
another package. `loans` keeps the messages that were received and are not settled: it sends acks in batches and extends loans
in time. `queue_source` makes a queue a `Source` of the runtime. `finite` is the base of sources that end; `folder`, `urls` and
`items` are three of them; `video` is one that cannot list its jobs, with `clips` (one file) and `read_ahead` (its thread).
`live_video` gives the newest frames of streams that do not wait, each read by a `live_stream`; `stream_clips` keeps a stretch
of them; `frames`, `region` and `motion` are what both share.

Nothing is imported here, so that a folder of images needs neither boto3 nor redis.
"""
