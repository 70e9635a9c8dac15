"""Does what files of rules forbid (`wrong`), or what only looks so (`right`): in an event loop, under a lock, with an ORM, with an argument."""

import asyncio
import sys
import threading
import time

from sqlalchemy import ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload

WRONG = sys.argv[1] == "wrong"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    lines: Mapped[list["Line"]] = relationship()


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))


async def fetch():
    if WRONG:
        time.sleep(0.04)
    else:
        await asyncio.to_thread(time.sleep, 0.04)
        await asyncio.sleep(0.04)


async def serve():
    await asyncio.gather(fetch(), fetch())


def write(lock, has_it):
    with lock:
        has_it.set()
        if WRONG:
            time.sleep(0.04)
    if not WRONG:
        time.sleep(0.04)


def page(session):
    orders = session.scalars(select(Order) if WRONG else select(Order).options(selectinload(Order.lines))).all()
    return sum(len(order.lines) for order in orders)


def price(n):
    if n < 0:
        raise KeyError(n) if WRONG else ValueError(n)
    return 2 * n


def main():
    asyncio.run(serve())
    lock, has_it = threading.Lock(), threading.Event()
    writer = threading.Thread(target=write, args=(lock, has_it))
    writer.start()
    has_it.wait()
    with lock:
        pass
    writer.join()
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(Order(lines=[Line(), Line()]) for _ in range(15))
        session.commit()
        session.expire_all()
        print(page(session))
    price(3)
    try:
        price(-1)
    except (KeyError, ValueError):
        pass


if __name__ == "__main__":
    main()
