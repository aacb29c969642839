"""The ladder: measures how much each optimisation of the product is worth, by turning it off.

    python -m benchmarks.ladder --articles-csv ag_news/test.csv

In this folder, "the product" is Broadsheet, and "a product" is a product of matrices. Every slow variant really runs,
and gives the product's labels. The variants are not options of the product.

- switches: what can be turned off, and what was predicted
- network, operations, engine: the variants
- measure: runs a step
"""
