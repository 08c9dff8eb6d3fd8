#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# jobs/gpu-studies.sh [--binary PATH] [--seconds N] [--gpus N] [--data DIR] [--output DIR] [--from FILE.tar.gz]
#                     [--pack FILE.tar.gz] [--machine FILE] [--small] [--list] [STUDY]...
# jobs/gpu-studies.sh --prepare DIR --text TRAIN VALIDATION --gpt2 FOLDER [--binary PATH]
# Runs the studies of inputs/studies (or those that are named) one after the other within so many
# seconds, on all GPUs of this machine, and after each of them packs what reports need into one file
# (DIR.tar.gz unless --pack names another): no checkpoints, no file above 3 MB. A study that fails is
# reported and skipped. Studies of several ranks come first; those of one run on every GPU at once, a point
# at a time on each. --from goes on with what an earlier call packed. --binary: a program, or a
# folder of jobs/bundle.sh. --small: on CPU ranks, to try it. --list: points and seconds of each
# study. Needs python3 with PyYAML and NumPy alone; reports are made elsewhere, where h5py,
# matplotlib and Jinja2 are.
# --prepare makes DIR, the token files of the studies that train on text: TRAIN with a vocabulary of
# 10,000 of its own, and with GPT-2's, whose gpt2_vocab.json and gpt2_merges.txt are in FOLDER. The
# studies of images that need some take packed TinyImageNet, DIR/images/train and DIR/images/validation.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

binary=build/bin/hyperslab
seconds=560
gpus=
data=runs/study-data
output=runs/gpu-studies
from=
packed=
machine=
small=0
list=0
prepare=
texts=()
gpt2=
named=()
absolute() { if [[ $1 == /* ]]; then printf '%s' "$1"; else printf '%s' "$hs_started_in/$1"; fi; }
value() { [[ -n ${2:-} ]] || hs_die 2 "jobs/gpu-studies.sh: $1 wants a value; see jobs/gpu-studies.sh --help"; }
arguments=("$@")
while (($# > 0)); do
  case $1 in
    --binary | --seconds | --gpus | --data | --output | --from | --pack | --machine | --prepare | --gpt2) value "$@" ;;&
    --binary | --data | --output | --from | --machine | --prepare | --gpt2)
      printf -v "${1#--}" '%s' "$(absolute "$2")"
      shift
      ;;
    --pack)
      packed=$(absolute "$2")
      shift
      ;;
    --seconds | --gpus)
      printf -v "${1#--}" '%d' "$2"
      shift
      ;;
    --text)
      value "$@"
      value "$1" "${3:-}"
      texts=("$(absolute "$2")" "$(absolute "$3")")
      shift 2
      ;;
    --small) small=1 ;;
    --list) list=1 ;;
    -h | --help)
      sed -n '3,17s/^# //p' "$hs_root/jobs/gpu-studies.sh"
      exit 0
      ;;
    -*) hs_die 2 "jobs/gpu-studies.sh: unknown option $1; see jobs/gpu-studies.sh --help" ;;
    *) named+=("$1") ;;
  esac
  shift
done

# A folder of jobs/bundle.sh: this script again, with its libraries.
if [[ -d $binary ]]; then
  [[ -x $binary/with-libraries ]] || hs_die 2 "$binary is no folder of jobs/bundle.sh: it has no with-libraries"
  cd -- "$hs_started_in"
  exec "$binary/with-libraries" "$hs_root/jobs/gpu-studies.sh" "${arguments[@]}" --binary "$binary/bin/hyperslab"
fi

if [[ -n $prepare ]]; then
  if ((${#texts[@]} < 2)) || [[ -z $gpt2 ]]; then
    hs_die 2 "jobs/gpu-studies.sh: --prepare wants --text TRAIN VALIDATION and --gpt2 FOLDER"
  fi
  scratch=$(mktemp -d)
  trap 'rm -rf -- "$scratch"' EXIT
  mkdir -p -- "$prepare/tinystories" "$prepare/gpt2" "$scratch/gpt2"
  "$binary" tokenize --train-vocab 10000 --special '<|endoftext|>' --input "${texts[0]}" \
    --output-vocab "$prepare/tinystories/vocabulary"
  cp -- "$gpt2/gpt2_vocab.json" "$scratch/gpt2/vocab.json"
  cp -- "$gpt2/gpt2_merges.txt" "$scratch/gpt2/merges.txt"
  for part in train validation; do
    text=${texts[$([[ $part == train ]] && echo 0 || echo 1)]}
    "$binary" tokenize --vocab "$prepare/tinystories/vocabulary" --input "$text" --output "$prepare/tinystories/$part.bin"
    "$binary" tokenize --vocab "$scratch/gpt2" --input "$text" --output "$prepare/gpt2/$part.bin"
  done
  du -sh -- "$prepare"
  exit 0
fi

# Study, whether it takes all GPUs, its points and seconds on two H200 (of all lanes together).
table="strong        all  2   45
weak          all  2   25
ddp_epoch     all  4   45
layouts       all  8  170
context       all  8  110
profile       one 50  210
warmup        one 10   35
memory        one 32  100
optimizations one  4   40
quality       one  9   75
ablation      one  6   60
learning_rate one 10   90
accumulation  one  9    5
memory_modes  one 24   80
tuning        one  6   90
quantization  one  9  110
images_224        one  4   40
images_batch      one  5   45
images_precision  one  4   45
images_sizes      one  3   35
images_loader     one  3   60
images_resolution one  3  240
isoflop       one 19 2400"
if ((list)); then
  printf '%s\n' "study         GPUs points seconds" "$table" | column -t
  awk '{s += $4} END {print s " s in all, on two H200, as estimated before any run"}' <<<"$table"
  exit 0
fi

if [[ -z $gpus ]]; then
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
  [[ -z ${CUDA_VISIBLE_DEVICES:-} ]] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
fi
((gpus > 0)) || hs_die 2 "no GPU here: name a number with --gpus, or try the studies on CPU ranks with --small --gpus 2"
[[ -x $binary ]] || hs_die 2 "no program $binary: run jobs/build.sh, or name one with --binary"
IFS=, read -ra devices <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 $((gpus - 1)))}"
counts=1
for count in 2 4 8; do ((count > gpus)) || counts+=",$count"; done

# text NAME: the settings of a study that trains on the tokens of NAME.
text() {
  printf '%s\n' --set "data.train=[$data/$1/train.bin]" --set "data.validation=[$data/$1/validation.bin]"
  [[ $1 != tinystories ]] || printf '%s\n' --set "data.vocabulary=$data/$1/vocabulary"
}

# images: the settings of a study that trains on the packed images in DATA/images.
images() { printf '%s\n' --set "data.train=[$data/images/train]"; }

# settings STUDY: what a GPU session takes of it, a word a line.
settings() {
  local layouts='"data","data, zero 1","data, zero 2","tensor 2","tensor 2, sequence","pipeline 2"'
  layouts+=',"pipeline 2, interleaved","pipeline 2, zero bubble"'
  ((gpus < 4)) || layouts+=',"tensor 2, pipeline 2","tensor 2, pipeline 2, zero 1"'
  ((gpus < 8)) || layouts+=',"tensor 8","pipeline 8"'
  printf '%s\n' --set run.device=cuda
  case $1 in
    strong) printf '%s\n' --axis "ranks=[$counts]" --set train.steps=20 ;;
    weak) printf '%s\n' --axis "ranks=[$counts]" ;;
    ddp_epoch)
      printf '%s\n' --axis "ranks=[${counts%,8}]" --set schedule.warmup_steps=20
      text tinystories
      ;;
    layouts)
      printf '%s\n' --set "ranks=$gpus" --axis "layout=[$layouts]" --set train.global_batch=16 --set train.steps=12
      ;;
    profile) # all contexts in fp32 and bf16, all precisions at one context
      printf '%s\n' --set warmup=3 --set steps=5 --only '*compute_fp32' --only '*compute_bf16' --only '*context_512-*'
      ;;
    optimizations) text gpt2 ;;
    images_loader) images ;;
    images_resolution) # a tenth of the recipe
      printf '%s\n' --set train.epochs=10 --set schedule.warmup_steps=781 --set train.validate_every=1562
      images
      printf '%s\n' --set "data.validation=[$data/images/validation]"
      ;;
    quantization) # few tokens: more steps would be more epochs
      printf '%s\n' --set train.steps=200 --set schedule.warmup_steps=20 --set train.validate_every=100
      text tinystories
      ;;
    isoflop) text tinystories ;;
    quality | ablation | learning_rate)
      printf '%s\n' --set train.steps=400 --set schedule.warmup_steps=40 --set train.validate_every=100
      text tinystories
      ;;
  esac
}
small_settings() {
  printf '%s\n' --small
  [[ $1 != layouts ]] || printf '%s\n' --axis 'layout=[data_4.bucket_mib_0.25,tensor_4,pipeline_4.1f1b]'
}

[[ $output == /* ]] || output=$hs_root/$output
: "${packed:=$output.tar.gz}"
mkdir -p -- "$output/logs"
if [[ -n $from ]]; then
  tar -xzf "$from" -C "$output"
fi
{
  date -u +%Y-%m-%dT%H:%M:%SZ
  "$binary" --version
  ! command -v nvidia-smi >/dev/null || nvidia-smi
} >"$output/machine.txt" 2>&1 || true

# pack: what there is so far, whole or not at all.
pack() (
  flock 9
  cd -- "$output"
  find . -type f -not -path '*/checkpoints/*' -not -path '*/report/*' -not -name '*.lock' -not -name '.part' -size -3072k -print0 |
    tar -czf "$output/.part" --null --no-recursion -T -
  cp -- "$output/.part" "$packed.part"
  mv -- "$packed.part" "$packed"
) 9>"$output/.pack.lock"

# study NAME LANE LIMIT: at most so many seconds, and none after the deadline.
study() {
  local name=$1 lane=$2 limit=$3 left=$((deadline - SECONDS)) log=$output/logs/$1.${2// /_}.log begin=$SECONDS code=0
  local words=()
  ((left < limit)) && limit=$left
  if ((limit < 8)); then
    hs_say "$name ($lane): no time left"
    return 0
  fi
  if ((small)); then mapfile -t words < <(small_settings "$name"); else mapfile -t words < <(settings "$name"); fi
  [[ $name != accumulation ]] || mapfile -t words < <(((!small)) || printf '%s\n' --small)
  [[ -z $machine ]] || words+=(--machine "$machine")
  timeout --kill-after=10 $((limit + 15)) python3 jobs/study.py "inputs/studies/$name.yaml" "${words[@]}" \
    --output "$output/$name" --binary "$binary" --launcher "mpirun --quiet --allow-run-as-root --bind-to none \
--oversubscribe -np {ranks}" --seconds "$limit" </dev/null >"$log" 2>&1 || code=$?
  hs_say "$name ($lane): ended with $code after $((SECONDS - begin)) s; $(tail -n 1 "$log")"
  ((code == 0 || code == 75)) || grep -E ': failed|study.py:|no prediction' "$log" | tail -n 5 || true
  pack || hs_say "cannot write $packed"
}

deadline=$((SECONDS + seconds - 5))
trap 'pack; exit 75' TERM INT
mapfile -t rows <<<"$table"
chosen() { # KIND: the rows of studies that are wanted
  local row name kind rest
  for row in "${rows[@]}"; do
    read -r name kind rest <<<"$row"
    [[ $kind == "$1" ]] || continue
    if ((${#named[@]} == 0)) || [[ " ${named[*]} " == *" $name "* ]]; then printf '%s\n' "$row"; fi
  done
}
for name in "${named[@]}"; do
  [[ $table == *"$name "* ]] || hs_die 2 "jobs/gpu-studies.sh: there is no study $name; see jobs/gpu-studies.sh --list"
done
if ((!small)) && [[ ! -f $data/tinystories/train.bin || ! -f $data/gpt2/train.bin ]]; then
  hs_say "no tokens in $data (see --prepare): studies that train on text will fail"
fi

# A study may take twice what was estimated, with several GPUs fewer seconds in all.
while read -r name _ _ estimate; do
  [[ -z $name ]] || study "$name" "all GPUs" $((2 * estimate + 15))
done < <(chosen all)
for ((lane = 0; lane < gpus; lane++)); do
  (
    export CUDA_VISIBLE_DEVICES=${devices[lane]:-$lane}
    while read -r name _ _ estimate; do
      [[ -z $name ]] || study "$name" "GPU $lane" $((4 * estimate / gpus + 15))
    done < <(chosen one)
  ) &
done
wait

python3 - "$output" <<'EOF_PYTHON'
import collections, json, pathlib, sys

print(f"{'study':<14} {'points':>6} {'seconds':>8}  states")
for folder in sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if (path / "points").is_dir()):
    points = [json.loads(path.read_text()) for path in sorted(folder.glob("points/*/point.json"))]
    states = collections.Counter(point["state"] for point in points)
    print(f"{folder.name:<14} {len(points):>6} {sum(point['seconds'] for point in points):>8.1f}  "
          + ", ".join(f"{count} {state}" for state, count in states.items()))
EOF_PYTHON
pack
hs_say "$packed: $(du -h -- "$packed" | cut -f1), $SECONDS s"
