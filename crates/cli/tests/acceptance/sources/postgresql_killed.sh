# The server is killed with SIGKILL while it works, alone or with all its processes; what it has committed is there afterwards.
bin=$1/bin
psql() { "$bin/psql" -h "$PWD" -AtqX postgres "$@"; }
begin() {
    setsid "$bin/postgres" -D data -c unix_socket_directories="$PWD" -c listen_addresses= >>log 2>&1 &
    server=$!
    until psql -c 'select 1' >answer 2>&1; do kill -0 $server && sleep 0.1 || { cat log >&2; exit 1; }; done
}
"$bin/initdb" --data-checksums -D data >/dev/null
begin
"$bin/pgbench" -h "$PWD" -i -s 2 -q postgres >/dev/null 2>&1
psql -c 'create table kept(round int, n int)'
for round in 1 2 3 4 5 6; do
    "$bin/pgbench" -h "$PWD" -c 3 -T 60 -n postgres >/dev/null 2>&1 &
    seq -f "insert into kept values($round, %.0f) returning n;" 1000000 | psql >kept 2>&1 &
    until [ "$(wc -l <kept)" -gt $((round * 40)) ]; do sleep 0.1; done
    all=$(cat /proc/$server/task/$server/children)
    if [ $((round % 2)) = 0 ]; then kill -9 $server; else kill -9 $all $server || true; fi
    wait || true
    # Those that outlive their server end by themselves.
    for one in $all; do while kill -0 "$one" 2>/dev/null; do sleep 0.1; done; done
    begin
    wanted=$(grep -cx '[0-9]\+' kept)
    found=$(psql -c "select count(*) filter (where n <= $wanted) from kept where round = $round")
    [ "$found" = "$wanted" ] || echo "round $round: $found of $wanted"
    same=$(psql -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
        and (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)')
    [ "$same" = t ] || echo "round $round: sums differ"
done
kill -INT $server
wait $server
"$bin/pg_checksums" -c -D data >/dev/null
