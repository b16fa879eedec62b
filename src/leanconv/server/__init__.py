"""A server of networks: the Open Inference Protocol v2 over HTTP, batches, bounded memory.

`leanconv serve` (`cli/serve`) is its command line. From a request to an answer:

    connections ─▶ app ─▶ exchange ─▶ protocol ─▶ service ─▶ batching ─▶ plans ─▶ a compiled network
    slow ones cut         limits, status  bytes to arrays        one thread    bytes known

It needs the extra `leanconv[server]`, which `app`, `connections`, `exchange`, `metrics` and `views`
import.
"""
