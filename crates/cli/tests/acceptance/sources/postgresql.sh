cd "$1/regress"
./pg_regress --bindir="$1/bin" --dlpath="$PWD" --inputdir=. --outputdir="$OLDPWD" --temp-instance="$OLDPWD/server" \
    --max-concurrent-tests=20 --schedule=parallel_schedule | tee "$OLDPWD/report" |
    sed -n 's/^\(test\)\? *\([^ ]*\) *\.\.\. FAILED.*/\2/p'
grep -q ' tests \(passed\|failed\)' "$OLDPWD/report"
