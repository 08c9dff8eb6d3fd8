#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_hang.sh CODE LINES PATTERN COMMAND...: the command ends within 15 s with the exit code, and
# prints so many lines of the watchdog, all with the pattern.
code=$1
lines=$2
pattern=$3
shift 3
out=$(timeout 15 "$@" 2>&1)
found=$?
echo "$out"
[ "$found" -eq "$code" ] || { echo "exit code $found, expected $code"; exit 1; }
[ "$(echo "$out" | grep -c '^hyperslab: ')" -eq "$lines" ] || { echo "expected $lines lines"; exit 1; }
[ "$(echo "$out" | grep -c "^hyperslab: .*$pattern")" -eq "$lines" ] || { echo "expected $pattern"; exit 1; }
