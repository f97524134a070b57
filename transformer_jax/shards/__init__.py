"""Do work on a large corpus shard by shard, in any number of processes."""
