"""What tests of the GPU share: a fake device, cases, and the processes that run them."""
