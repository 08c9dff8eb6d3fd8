# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Which hosts jobs/keep-running.sh leaves out: sourced by it, it reads and changes `launcher`, `arguments`, `all_ranks` and
# `data_ranks` of it, and has what it left out in `hs_left_out`.
# shellcheck disable=SC2154
hs_left_out=()
declare -A hs_named=()

# hs_option NAME...: the place of the value of the first of these options of the launcher; fails if it has none.
hs_option() {
  local i name
  for ((i = 1; i + 1 < ${#launcher[@]}; i++)); do
    for name in "$@"; do
      [[ ${launcher[i]} != "$name" ]] || {
        printf '%d\n' $((i + 1))
        return 0
      }
    done
  done
  return 1
}

# hs_slots: "HOST SLOTS" of every host of the launcher, in its order; nothing if it does not name any. Slots are 0 if unknown.
hs_slots() {
  local at words
  if at=$(hs_option --host -host -H); then
    IFS=, read -ra words <<<"${launcher[at]}"
    printf '%s\n' "${words[@]}" | sed 's/^\([^:]*\)$/\1:1/; s/:/ /'
  elif at=$(hs_option --hostfile -hostfile --machinefile -machinefile); then
    sed -n 's/#.*//; s/^ *\([^ =]\{1,\}\).*[ ]slots *= *\([0-9]\{1,\}\).*/\1 \2/p; t; s/^ *\([^ =]\{1,\}\).*/\1 0/p' "${launcher[at]}"
  elif [[ -n ${SLURM_JOB_NODELIST:-} ]]; then
    scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s|\$| $((all_ranks / ${SLURM_JOB_NUM_NODES:-1}))|"
  fi | awk '{if (!($1 in slots)) order[++n] = $1; slots[$1] += $2} END {for (i = 1; i <= n; i++) print order[i], slots[order[i]]}'
}

# hs_answers HOST: whether the launcher could start something there.
hs_answers() {
  local at agent
  [[ $1 != "$(hostname)" && $1 != "$(hostname -s)" && $1 != localhost ]] || return 0
  if [[ -n ${SLURM_JOB_ID:-} ]]; then
    ! sinfo -h -n "$1" -o %T 2>/dev/null | grep -qE 'down|fail|unk'
    return
  fi
  agent=${OMPI_MCA_plm_rsh_agent:-ssh}
  ! at=$(hs_option plm_rsh_agent) || agent=${launcher[at]}
  [[ $agent != ssh ]] || agent="ssh -o BatchMode=yes -o ConnectTimeout=5"
  # shellcheck disable=SC2086  # an agent may have options
  timeout 10 $agent "$1" true >/dev/null 2>&1 </dev/null
}

# Hosts of ranks that the watchdog called gone or silent in the last run, by their names in the launcher.
hs_blamed() {
  local known=$1 host
  sed 's/; /\n/g' "$scratch/lines" | sed -n 's/.* host \([^ ]*\) \(is gone\|does not answer\).*/\1/p' | sort -u |
    while IFS= read -r host; do
      awk -v host="$host" '{short = $1; sub(/\..*/, "", short); other = host; sub(/\..*/, "", other)}
        $1 == host || short == other {print $1; exit}' <<<"$known"
    done
}

# hs_layout RANKS: the most data ranks that fit and that the deck allows; fails if there are none.
hs_layout() {
  local each=$((all_ranks / data_ranks)) count
  for ((count = $1 / each; count > 0; count--)); do
    if ((count <= data_ranks)) && deck "${arguments[@]}" --set "parallel.data=$count" >/dev/null; then
      printf '%d\n' "$count"
      return 0
    fi
  done
  return 1
}

# hs_set_option VALUE NAME...: gives the launcher's option another value, or the first name with it.
hs_set_option() {
  local value=$1 at
  shift
  if at=$(hs_option "$@"); then
    launcher[at]=$value
  else
    launcher=("${launcher[0]}" "$1" "$value" "${launcher[@]:1}")
  fi
}

# hs_start_on "HOST SLOTS" LINES, DATA RANKS: changes the command.
hs_start_on() {
  local each=$((all_ranks / data_ranks)) ranks hosts
  ranks=$((each * $2))
  hosts=$(awk '{printf "%s%s%s", (NR > 1 ? "," : ""), $1, ($2 > 0 ? ":" $2 : "")}' <<<"$1")
  case ${launcher[0]##*/} in
    srun)
      hs_set_option "$(IFS=,; printf '%s' "${hs_left_out[*]}")" --exclude
      hs_set_option "$(wc -l <<<"$1")" --nodes -N
      hs_set_option "$ranks" --ntasks -n
      ;;
    *)
      if hs_option --hostfile -hostfile --machinefile -machinefile >/dev/null && ! hs_option --host -host -H >/dev/null; then
        awk '{print $1 ($2 > 0 ? " slots=" $2 : "")}' <<<"$1" >"$scratch/hosts"
        hs_set_option "$scratch/hosts" --hostfile -hostfile --machinefile -machinefile
      else
        hs_set_option "$hosts" --host -host -H
      fi
      hs_set_option "$ranks" -np --np -n -c
      ;;
  esac
  arguments+=(--set "parallel.data=$2")
  all_ranks=$ranks
  data_ranks=$2
}

# After a run that failed: leaves out what was named twice, or was named and does not answer. A lost host (205), or one that
# mpirun cannot reach (1), need not have been named, if others answer.
hs_leave_out() {
  local known host rest bad="" count total left silent="" answering=0
  known=$(hs_slots 2>/dev/null) || return 0
  [[ $(wc -l <<<"$known") -gt 1 ]] || return 0
  for host in $(hs_blamed "$known"); do
    hs_named[$host]=$((${hs_named[$host]:-0} + 1))
    if ((hs_named[$host] >= 2)) || ! hs_answers "$host"; then bad+=" $host"; fi
  done
  if [[ -z $bad && ($code == 205 || $code == 1) ]]; then
    while read -r host _; do
      if hs_answers "$host"; then answering=$((answering + 1)); else silent+=" $host"; fi
    done <<<"$known"
    ((answering == 0)) || bad=$silent
  fi
  [[ -n $bad ]] || return 0
  rest=$(awk -v bad="$bad " '!index(bad, " " $1 " ")' <<<"$known")
  [[ -n $rest ]] || return 0
  total=$(awk '{sum += $2 > 0 ? $2 : 1} END {print sum}' <<<"$known")
  left=$(awk '{sum += $2 > 0 ? $2 : 1} END {print sum}' <<<"$rest")
  ((total >= all_ranks)) || left=$((all_ranks * left / total))
  if ! count=$(hs_layout "$left"); then
    hs_say "keep-running:$bad should be left out, but the deck allows no layout of $left ranks" >&2
    return 0
  fi
  for host in $bad; do hs_left_out+=("$host"); done
  hs_start_on "$rest" "$count"
}
