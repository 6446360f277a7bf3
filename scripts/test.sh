#!/usr/bin/env bash
# Runs the tests. Needs Rust and a C compiler, and installs the other programs that the tests start.
#
#   scripts/test.sh          every stage: tools, build, quick, programs, faults
#   scripts/test.sh quick    build and quick only: unit and property tests that start no program but slidegate itself
#
# `.config/nextest.toml` says which test belongs to which stage. A failure does not end the run: every stage runs, and the end of
# the output lists the slowest tests and every failure. The results of the run stay in target/test-results.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh

case ${1:-all} in
all) stages=(quick programs faults) ;;
quick) stages=(quick) ;;
*)
    sed -n '2,5s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

results=target/test-results.txt
log=target/test-doc.log
mkdir -p target
: >"$results"

begin() {
    printf '\n== %s: %s\n' "$1" "$2"
    began=$SECONDS
}
end() {
    printf '== %s: %s s\n' "$1" "$((SECONDS - began))"
}

# Results are lines of: seconds, `passed` or `failed`, binary, test.
read_junit() {
    awk -v RS='<testcase ' 'NR > 1 {
        split($0, quoted, "\"")
        match($0, / time="[0-9.]*"/)
        seconds = substr($0, RSTART + 7, RLENGTH - 8)
        verdict = /<(failure|error)/ ? "failed" : "passed"
        print seconds, verdict, quoted[4], quoted[2]
    }' "$1" >>"$results"
}
read_doc_tests() {
    awk '/^test .* \.\.\. (ok|FAILED)$/ {
        verdict = $NF == "ok" ? "passed" : "failed"
        sub(/^test /, ""); sub(/ \.\.\. [A-Za-z]*$/, "")
        print 0, verdict, "doc", $0
    }' "$log" >>"$results"
}

# run_stage NAME THREADS FILTER: runs one stage with nextest. A runner that breaks without a failed test is a failure too.
cores=$(getconf _NPROCESSORS_ONLN)
run_stage() {
    local junit=target/nextest/default/junit.xml code=0
    rm -f "$junit"
    "${nextest[@]}" run --workspace --all-features --no-fail-fast --test-threads "$2" -E "$3" || code=$?
    [ ! -f "$junit" ] || read_junit "$junit"
    # 100: some tests failed, and the report names them.
    if [ $code != 0 ] && [ $code != 100 ]; then
        echo "0 failed runner stage-$1-ended-with-code-$code" >>"$results"
    fi
}

case " ${stages[*]} " in
*" programs "*)
    begin tools "installs the programs that the tests start: redis-server, envoy, nginx, chromium and others"
    bash scripts/tools.sh
    end tools
    ;;
esac
need_nextest

begin build "compiles the tests"
"${nextest[@]}" run --workspace --all-features --no-run
end build

for stage in "${stages[@]}"; do
    case $stage in
    quick)
        begin quick "unit and property tests, and the slidegate binary without other programs"
        run_stage quick $((2 * cores)) 'not (group(programs) | group(browser) | group(faults))'
        # nextest does not run the examples of the documentation.
        code=0
        timeout 900 cargo test --workspace --all-features --doc --no-fail-fast >"$log" 2>&1 || code=$?
        read_doc_tests
        if [ $code != 0 ]; then
            cat "$log"
            grep -q ' failed doc ' "$results" || echo "0 failed runner doc-tests-ended-with-code-$code" >>"$results"
        fi
        ;;
    programs)
        begin programs "tests with real programs: Redis, Valkey, Envoy, nginx, browsers, clients"
        run_stage programs $((3 * cores)) 'group(programs) | group(browser)'
        ;;
    faults)
        begin faults "tests that need the machine for themselves, one at a time: kills, failovers, deadlines, load"
        run_stage faults 1 'group(faults)'
        ;;
    esac
    end "$stage"
done

printf '\n== the ten slowest tests\n'
sort -rn "$results" | awk 'NR <= 10 { printf "%8.1f s  %s %s\n", $1, $3, $4 }'
failed=$(awk '$2 == "failed"' "$results" | wc -l)
passed=$(awk '$2 == "passed"' "$results" | wc -l)
if [ "$failed" -gt 0 ]; then
    printf '\n== failures, and how to run each alone\n'
    awk '$2 == "failed" {
        binary = $3
        name = $0
        sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", name)
        print name
        if (binary == "doc") printf "    cargo test --workspace --all-features --doc -- \x27%s\x27\n", name
        else if (binary != "runner")
            printf "    cargo nextest run --workspace --all-features -E \x27binary_id(%s) & test(=%s)\x27\n", binary, name
    }' "$results"
fi
printf '\n%s s in all\n%s passed, %s failed\n' "$SECONDS" "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
