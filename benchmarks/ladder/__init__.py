"""The ladder: what each thing that the product does is worth, measured by turning it off.

    python -m benchmarks.ladder --articles-csv ag_news/test.csv

Every slow variant is a real one that runs and gives the product's labels; they live here and are no options of the
product. `switches` says what can be turned off and what was predicted, `network` and `engine` are the variants.
"""
