"""Pure decisions: what should be and why, from frozen data; no cluster, no clock, no ids."""
