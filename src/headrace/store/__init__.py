"""Data sets as few large files: tar shards with an index, read at random or in order.

Read in this order: `tar_header` is one block of 512 bytes; `tar_scan` walks a tar file that may come from anybody;
`shard_index` is the Parquet file beside a shard, with the place and the checksum of each member; `samples` joins the files of
one sample by their stem; `shards` finds the shards that a user names and lists what is in them; `shard_reader` reads members
at random. For writing: `naming` gives members their names, `turns` keeps the order in which they are written, `shard_writer`
adds members to one shard, and `manifest` says what a packed folder holds.

What a Plan keeps of results is apart: `cache_key` and `code_hash` say under what, `memory_cache` and `disk_cache` where,
`admission` what a full one does, `single_flight` who makes what is missing.

A tar shard is readable by every tar tool, and by WebDataset. See decision 0065.
"""
