"""Make the input of the job files: orders, shipments and customers, as Parquet files below data/.

    python examples/make_data.py [directory]

An order is shipped in one, two or no parcels. A few of the customers who order are not in the table
of customers. Numbers follow from a fixed seed.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ORDERS = 20_000
CUSTOMERS = 3_000
UNKNOWN = 40  # customers who order but are not in the table
FILES = 4


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data"
    rng = np.random.default_rng(7)
    number = np.arange(ORDERS)
    orders = pa.table(
        {
            "order_id": number,
            "customer": pa.array(np.char.mod("customer-%05d", rng.integers(0, CUSTOMERS, ORDERS))),
            "amount": rng.integers(500, 50_000, ORDERS) / 100,
        }
    )
    shipped = np.repeat(number, rng.integers(0, 3, ORDERS))
    shipments = pa.table(
        {
            "shipment_id": np.arange(len(shipped)),
            "ordered": rng.permutation(shipped),
            "weight_g": rng.integers(50, 20_000, len(shipped)),
        }
    )
    known = np.arange(CUSTOMERS - UNKNOWN)
    customers = pa.table(
        {
            "name": pa.array(np.char.mod("customer-%05d", known)),
            "city": pa.array(np.char.mod("city-%03d", known % 250)),
            "credit": rng.integers(0, 100_000, len(known)) / 100,
        }
    )
    tables = {"orders": orders, "shipments": shipments, "customers": customers}
    for name, table in tables.items():
        target = directory / name
        target.mkdir(parents=True, exist_ok=True)
        size = -(-table.num_rows // FILES)
        for part in range(FILES):
            pq.write_table(table.slice(part * size, size), target / f"part-{part}.parquet")
        print(f"{target}: {table.num_rows:,} rows in {FILES} files")


if __name__ == "__main__":
    main()
