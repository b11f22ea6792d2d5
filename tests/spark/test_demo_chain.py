"""The chain of Spark's own joins that the demo runs for comparison computes the demo's query."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa
from pyspark.sql import SparkSession

from dovetail.cli.demo.chain import chain_of_joins
from dovetail.testing import assert_same_rows
from dovetail.workloads.ad_funnel import AdFunnel, batch_join


def test_the_chain_has_the_rows_of_the_query(spark: SparkSession) -> None:
    funnel = AdFunnel(seed=5, rate=20.0, users=50, ads=30, click_share=0.5, order_share=0.8)
    batches = list(islice(funnel.batches(), 6))
    tables = {name: pa.concat_tables([batch[name] for batch in batches]) for name in batches[0]}
    chain = chain_of_joins(spark, {name: spark.createDataFrame(table) for name, table in tables.items()}, "5 seconds")
    answer = batch_join(**tables)
    assert answer.num_rows > 100
    actual = chain.toArrow()
    columns = [actual[name].cast(answer.schema.field(name).type) for name in answer.column_names]
    assert_same_rows(pa.table(columns, schema=answer.schema), answer)
