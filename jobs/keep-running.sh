#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/keep-running.sh [--most N] [--same N] [--delay SECONDS] [--most-delay SECONDS] [--silent SECONDS] mpirun [OPTION...] hyperslab train DECK [OPTION...]
# Runs the command and starts it again when it fails, so that it goes on from its newest checkpoint. srun stands as well as mpirun.
# After code 5 (storage), 8 (lost or silent rank), 137, 139 and all other signals, 205 (a lost host): again, after 1, 2, 4 ... 60 s
# (after 5: 15 times as long). After 1 and 6 (environment): once. After 2, 3, 4 and 7: never. It gives up when --same N (3) failures
# in a row brought neither a newer finished step nor a newer checkpoint, and after --most N restarts in all (0, which is the default: no
# limit). After 75 it starts again, unless this script was asked to stop (USR1, USR2, TERM, INT: handed on as USR1), the time is over
# (run.walltime_minutes) or Slurm runs the job: then it ends with 75, for whoever puts the job into the queue again. HUP, of a terminal that
# closes, is taken as USR1 too; under nohup it reaches neither this script nor the run. A second INT (Ctrl-C) ends the command without saving.
# A launcher without any process of its own for --silent SECONDS (60) is ended as if killed: Open MPI 4.1 can stay behind for ever when a
# rank dies while it is being started.
# A host that the watchdog named twice, or that was named and does not answer, is left out of --host, --hostfile or Slurm's nodes, with as
# many data ranks as the rest holds and the deck allows. Each restart is a line in restarts.jsonl of the run's directory.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
source "$hs_root/jobs/hosts.sh"
cd -- "$hs_started_in"

usage() { sed -n '3,15s/^# //p' "$hs_root/jobs/keep-running.sh"; }
die() { hs_die "$1" "jobs/keep-running.sh: $2"; }
most=0
same=3
delay=1
most_delay=60
silent=60
while (($# > 0)); do
  case $1 in
    --most | --same | --delay | --most-delay | --silent)
      [[ $# -ge 2 && $2 =~ ^(0|[1-9][0-9]{0,6})$ ]] || die 2 "$1 needs a whole number"
      name=${1#--}
      declare "${name//-/_}=$2"
      shift 2
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*) die 2 "unknown option $1; see jobs/keep-running.sh --help" ;;
    *) break ;;
  esac
done

# The command's parts: what launches, the program, and the arguments of `train`.
launcher=()
program=
arguments=()
for ((i = 1; i < $#; i++)); do
  [[ ${*:i+1:1} == train ]] || continue
  launcher=("${@:1:i-1}")
  program=${*:i:1}
  arguments=("${@:i+2}")
  break
done
[[ -n $program ]] || die 2 "there is no \`hyperslab train DECK\` in the command; see --help"
for word in "${arguments[@]}"; do
  [[ $word != : ]] || die 2 "several programs in one mpirun (:) cannot be kept running"
done

# Scratch folders of this user whose script was killed on this host are removed.
scratch_names=${TMPDIR:-/tmp}/keep-running.${HOSTNAME:-host}
for folder in "$scratch_names".*; do
  owner=${folder#"$scratch_names".}
  owner=${owner%%.*}
  [[ -d $folder && ! -L $folder && -O $folder && $owner =~ ^[0-9]+$ && ! -d /proc/$owner ]] || continue
  rm -rf -- "$folder"
done
scratch=$(mktemp -d "$scratch_names.$$.XXXXXX")
child=
reader=
guard=
asked=0
clean() {
  [[ $BASHPID == "$$" ]] || return 0 # a subshell that is killed early still has the traps of the script
  [[ -z $reader ]] || kill "$reader" "$guard" 2>/dev/null || true
  rm -rf -- "$scratch"
}
trap clean EXIT
# stop SIGNAL: asks the run to save and end, by SIGNAL.
stop() {
  [[ $BASHPID == "$$" ]] || exit 143
  asked=1
  signalled=1
  [[ -z $child ]] || kill "-$1" "$child" 2>/dev/null || true
}
trap 'stop USR1' USR1 USR2 TERM HUP
trap 'stop "$( ((asked)) && printf TERM || printf USR1)"' INT
# In a session of its own the launcher gets no signal of the terminal: Open MPI would end the run without saving.
own_session=()
[[ -z $(type -P setsid) ]] || own_session=(setsid)

# deck ARGUMENT...: the resolved deck, for any number of ranks; fails if it breaks a rule.
deck() { "$program" train "$@" --print-deck 2>"$scratch/deck.err" </dev/null; }
# value DECK SECTION KEY
value() {
  awk -v section="$2:" -v key="$3:" '
    /^[^ ]/ {inside = ($0 == section)}
    inside && $1 == key {sub(/^ *[^ ]+ +/, ""); if ($0 != "null") print; exit}' <<<"$1" |
    sed 's/^"\(.*\)"$/\1/; s/\\\(["\\]\)/\1/g'
}
resolved=$(deck "${arguments[@]}") || {
  cat "$scratch/deck.err" >&2
  exit 2
}
run_directory=$(value "$resolved" run directory)
[[ -n $run_directory ]] || run_directory=runs/$(value "$resolved" run name)
checkpoints=$(value "$resolved" checkpoint directory)
: "${checkpoints:=$run_directory/checkpoints}"
data_ranks=$(value "$resolved" parallel data)
all_ranks=$data_ranks
for axis in tensor pipeline context; do
  size=$(value "$resolved" parallel "$axis")
  all_ranks=$((all_ranks * ${size:-1}))
done

# The newest finished step and the newest checkpoint; 0: none.
finished_step() {
  local step
  step=$(tail -n 2 -- "$run_directory/metrics.jsonl" 2>/dev/null |
    sed -n 's/^{.*"step": *\([0-9]\{1,15\}\)[,}].*}$/\1/p' | tail -n 1) || true
  printf '%s\n' "${step:-0}"
}
saved_step() {
  local step
  step=$(sed -n 's/^step_0*\([0-9]\{1,15\}\)$/\1/p' "$checkpoints/latest" 2>/dev/null) || true
  printf '%s\n' "${step:-0}"
}

# Waits for the command; a signal to this script interrupts `wait`, but does not end the command at once.
await() {
  while :; do
    signalled=0
    code=0
    wait "$child" || code=$?
    ((signalled)) || return 0
  done
}

# Ends a launcher that has had no children for so long.
end_if_childless() {
  local since=$SECONDS
  [[ -r /proc/$1/task/$1/children ]] || return 0 # a kernel that does not report them
  while kill -0 "$1" 2>/dev/null; do
    if [[ -n $(cat "/proc/$1/task/"*/children 2>/dev/null) ]]; then
      since=$SECONDS
    elif ((SECONDS - since >= silent)); then
      echo "jobs/keep-running.sh: ${launcher[0]} has had no process for $silent s, and is ended" >&2
      kill -KILL "$1" 2>/dev/null || true
      return
    fi
    sleep 1
  done
}

# Runs the command; `code` is what it ended with, $scratch/lines what it said of that.
run_once() {
  local tries
  rm -f -- "$scratch/stderr"
  mkfifo "$scratch/stderr"
  : >"$scratch/started"
  tee /dev/fd/3 3>&2 <"$scratch/stderr" |
    grep --line-buffered -E '^hyperslab: |stopping after step' >"$scratch/lines" &
  reader=$!
  "${own_session[@]}" "${launcher[@]}" "$program" train "${arguments[@]}" 2>"$scratch/stderr" &
  child=$!
  ((asked == 0)) || kill -USR1 "$child" 2>/dev/null || true
  end_if_childless "$child" &
  guard=$!
  await
  child=
  kill "$guard" 2>/dev/null || true
  # What mpirun left behind may hold the other end for ever.
  for ((tries = 0; tries < 50; tries++)); do
    [[ -n $(jobs -r) ]] || break
    sleep 0.1
  done
  kill "$reader" 2>/dev/null || true
  reader=
}

# Goes on from what the run has reached, whatever the first start was told to resume from.
resume_what_is_there() {
  local kept=() word skip=0
  [[ $run_directory/metrics.jsonl -nt $scratch/started ]] || return 0
  for word in "${arguments[@]}"; do
    if ((skip)); then
      skip=0
    elif [[ $word == --resume ]]; then
      skip=1
    elif [[ $word != --resume=* ]]; then
      kept+=("$word")
    fi
  done
  arguments=("${kept[@]}" --resume auto)
}

# give_up REASON: ends with the code of the last failure.
give_up() {
  hs_say "keep-running: gave up: $1 (code $code, step $step, $restarts restarts)" >&2
  exit "$code"
}

record() {
  local hosts
  hosts=$(printf ', "%s"' "${hs_left_out[@]}")
  mkdir -p -- "$run_directory" 2>/dev/null || true
  printf '{"time": "%s", "attempt": %d, "code": %d, "step": %d, "checkpoint": %d, "delay_seconds": %d, "ranks": %d, "data": %d, "left_out": [%s]}\n' \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$restarts" "$code" "$step" "$saved" "$pause" "$all_ranks" "$data_ranks" \
    "$( ((${#hs_left_out[@]} == 0)) || printf '%s' "${hosts:2}")" 2>/dev/null >>"$run_directory/restarts.jsonl" ||
    hs_say "keep-running: cannot write $run_directory/restarts.jsonl" >&2
}

# Whether the end of the last run is the end of this script.
is_over() {
  ((code != 0)) || return 0
  if ((asked)); then # whatever a signal made of the launcher, the run can go on
    ((code >= 2 && code <= 7)) || code=75
    return 0
  fi
  ((code == 75)) || return 1
  [[ -n ${SLURM_JOB_ID:-} ]] || grep -q 'stopping after step [0-9]* since' "$scratch/lines"
}

reached=-1
failures=0
restarts=0
while :; do
  ((asked == 0)) || exit 75
  run_once
  ! is_over || exit "$code"
  step=$(finished_step)
  saved=$(saved_step)
  newest=$((step > saved ? step : saved))
  failures=$((newest > reached ? 1 : failures + 1))
  reached=$((newest > reached ? newest : reached))
  case $code in
    2 | 3 | 4 | 7) give_up "this cannot be mended by another start" ;;
    1 | 6) ((failures < 2)) || give_up "another start did not help" ;;
  esac
  ((failures < same)) || give_up "$failures failures, and none got further"
  ((most == 0 || restarts < most)) || give_up "--most $most"
  restarts=$((restarts + 1))
  pause=$((delay << (failures < 7 ? failures - 1 : 6)))
  ((code != 5)) || pause=$((15 * pause))
  ((pause <= most_delay)) || pause=$most_delay
  without=${#hs_left_out[@]}
  hs_leave_out
  ((${#hs_left_out[@]} == without)) || failures=0 # on other hosts it may get further
  resume_what_is_there
  record
  hs_say "keep-running: code $code after step $step; restart $restarts in $pause s from checkpoint $saved${hs_left_out:+, without ${hs_left_out[*]}}" >&2
  sleep "$pause" &
  wait $! || kill $! 2>/dev/null || true # a signal ends the pause
done
