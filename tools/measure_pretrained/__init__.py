"""Measure converted models with real weights, each measurement to a JSON file.

usage: python -m tools.measure_pretrained identity|translations|cost|curve|noise --minilm DIR --opus DIR --pairs TSV
                                          [--t5 DIR --smollm2 DIR, of identity]
                                          --output DIR [--count N]
       python -m tools.measure_pretrained sentiment --minilm DIR --reviews DIR --output DIR
                                          [--shares 0.1 1] [--seeds 0 1]
       python -m tools.measure_pretrained retrieval --minilm DIR --snli DIR --output DIR
       python -m tools.measure_pretrained tables --output DIR

`tools.pretrained_weights` fetches the weights, the reviews and SNLI. The pairs are lines of English, tab, Chinese,
compressed with gzip. Long measurements keep what is done, and a new start goes on from there. `tables` prints the
tables of docs/results/pretrained.md.
"""
