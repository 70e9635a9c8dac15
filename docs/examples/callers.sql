-- With DuckDB: who calls whom, how often, and what a call takes. For trace.sql(), which knows the tables by their names.
select
    caller.qualname as caller,
    called.qualname as called,
    count(*) as calls,
    sum(calls.wall_ns) / 1e6 as total_ms,
    quantile_cont(calls.wall_ns, 0.99) / 1e3 as p99_us,
    sum(calls.self_gil_wait_ns) / 1e6 as gil_ms
from calls
join calls as parents on parents.call_id = calls.parent_id
join functions as caller on caller.func_id = parents.func_id
join functions as called on called.func_id = calls.func_id
group by all
order by total_ms desc
limit 10
