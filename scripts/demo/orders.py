"""An order service in small, for `make demo`: busy for four seconds or what is given, on every kind of waiting there is.

A feed decodes orders from JSON, clerks price them and pack each batch into an archive (compression
releases the GIL, so more of them want a core than there are), a journal makes every batch durable with
fsync, and a monitor looks after the backlog now and then.
"""

import hashlib
import json
import os
import queue
import random
import sys
import tempfile
import threading
import time
import zlib

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
ORDERS_A_SECOND = 1200
BATCH = 40
CORES = len(os.sched_getaffinity(0))
CLERKS = min(CORES, 16) + 2
# Packing one batch per BATCH / ORDERS_A_SECOND seconds shall want about 1.3 times the cores there are.
ATTACHMENT = CORES * 224 * 1024
CATALOGUE = {f"SKU-{number:03}": 100 + 37 * number % 900 for number in range(200)}


class Order:
    def __init__(self, number, customer, lines):
        self.number = number
        self.customer = customer
        self.lines = lines
        self.total = 0

    @classmethod
    def decode(cls, record):
        fields = json.loads(record)
        return cls(fields["number"], fields["customer"], fields["lines"])


class Ledger:
    """What every customer owes; shared by all clerks."""

    def __init__(self):
        self.lock = threading.Lock()
        self.owed = {}

    def post(self, orders):
        with self.lock:
            for order in orders:
                self.owed[order.customer] = self.owed.get(order.customer, 0) + order.total
            self.reconcile()

    def reconcile(self):
        return sum(sorted(self.owed.values()))


def records():
    """The day's orders as they come over the wire."""
    skus = list(CATALOGUE)
    for number in range(int(SECONDS * ORDERS_A_SECOND)):
        lines = [{"sku": skus[(7 * number + 13 * k) % len(skus)], "quantity": (number + k) % 9 + 1} for k in range(3)]
        yield json.dumps({"number": number, "customer": number % 97, "lines": lines})


def feed(wire, inbox):
    """Decode orders at the pace at which they come in, and hand them on by the batch."""
    start = time.monotonic()
    batch = []
    for number, record in enumerate(wire):
        batch.append(Order.decode(record))
        if len(batch) == BATCH:
            inbox.put(batch)
            batch = []
            wait_for_orders(start + number / ORDERS_A_SECOND)
        if time.monotonic() - start > SECONDS:
            break
    for _ in range(CLERKS):
        inbox.put(None)


def wait_for_orders(due):
    time.sleep(max(0.0, due - time.monotonic()))


def discount(quantity):
    return 0.9 if quantity > 5 else 1.0


def price_line(line):
    return CATALOGUE[line["sku"]] * line["quantity"] * discount(line["quantity"])


def price(order):
    order.total = round(sum(map(price_line, order.lines)))
    order.risk = assess_risk(order)


def assess_risk(order):
    """Plain computing that holds the GIL."""
    score = order.number
    for step in range(1000):
        score = (score * 31 + step) % 65521
    return score


def pack(orders, attachment):
    text = json.dumps([[order.number, order.total, order.risk] for order in orders]).encode()
    archive = zlib.compress(text + attachment, 9)
    return archive, hashlib.sha256(archive).hexdigest()


def clerk(inbox, outbox, ledger, attachment):
    while True:
        orders = inbox.get()
        if orders is None:
            return
        for order in orders:
            price(order)
        ledger.post(orders)
        outbox.put((len(orders), pack(orders, attachment)))


def write_durably(file, archive):
    file.write(archive)
    file.flush()
    os.fsync(file.fileno())


def journal(outbox, done):
    with tempfile.TemporaryFile(dir=".") as file:
        while True:
            item = outbox.get()
            if item is None:
                return
            count, (archive, _) = item
            write_durably(file, archive)
            done.append(count)


def monitor(inbox, stop):
    longest = 0
    while not stop.wait(0.05):
        longest = max(longest, inbox.qsize())


def attachment_text():
    words = ["invoice", "delivery", "net", "gross", "pallet", "carton", "due", "paid", "return", "thanks"]
    return " ".join(random.Random(7).choices(words, k=ATTACHMENT // 8)).encode()


def main():
    attachment, wire = attachment_text(), list(records())
    start = time.monotonic()
    inbox, outbox, done, stop = queue.Queue(8), queue.Queue(), [], threading.Event()
    ledger = Ledger()
    feeder = threading.Thread(target=feed, args=(wire, inbox), name="feed")
    writer = threading.Thread(target=journal, args=(outbox, done), name="journal")
    watcher = threading.Thread(target=monitor, args=(inbox, stop), name="monitor")
    clerks = [threading.Thread(target=clerk, args=(inbox, outbox, ledger, attachment), name=f"clerk-{number}") for number in range(CLERKS)]
    for thread in [feeder, writer, watcher, *clerks]:
        thread.start()
    for thread in [feeder, *clerks]:
        thread.join()
    outbox.put(None)
    stop.set()
    writer.join()
    watcher.join()
    seconds = time.monotonic() - start
    print(f"orders: {sum(done)} priced, packed and journaled by {CLERKS} clerks in {seconds:.1f} s")


if __name__ == "__main__":
    main()
