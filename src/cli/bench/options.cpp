// SPDX-License-Identifier: Apache-2.0
// The options of `bench`.
#include "../command.hpp"

namespace hyperslab::cli {
namespace {

void add_bench_options(Arguments& args) {
  add_deck_options(args);
  args.add()(
      "mode", po::value<std::string>()->default_value("step"),
      "forward (with the loss), forward-backward, step (with optimizer), all (these three, and how "
      "they compare), data (loader alone), or decode (tokens one by one, random weights)")(
      "warmup", po::value<int>()->default_value(5), "steps before the measured ones")(
      "steps", po::value<int>()->default_value(10), "measured steps; with decode: tokens a text")(
      "rows", po::value<int>()->default_value(1), "decode: texts at once")(
      "prompt", po::value<int>()->default_value(1), "decode: tokens of a text's prompt")(
      "temperature", po::value<double>()->default_value(0),
      "decode: of drawn tokens; 0: the likeliest ones")(
      "top-p", po::value<double>()->default_value(1), "decode: tokens are drawn of this mass")(
      "components", "time, FLOPs and share of every part of the model; graphs off")(
      "kernels", "every kernel of the measured steps, by CUPTI, graphs off; on the CPU every op")(
      "communication",
      "how long the measured steps communicate on the GPU of rank 0, and how much of it nothing "
      "hides, by CUPTI")(
      "count",
      "instead of times: allocations, synchronizations and launches of steps 5 to 15, by CUPTI; "
      "ends with 1 if a step needs the host")("dtypes",
                                              "what tensors are stored in and computed in")(
      "memory", po::value<std::string>(), "write every planned allocation to this .csv or .json")(
      "memory-timeline", po::value<std::string>(),
      "write to this .json when every allocation is in use in one more step, for "
      "python3 -m analysis memory")(
      "ranges", "name phases and layers for NVIDIA's profilers (NVTX); graphs off")(
      "cold",
      "no warm-up: setup, plan building and first calls fall into step 1, which is also reported "
      "apart")("each", "print the time of every measured step")(
      "json", po::value<std::string>(), "also write all figures, every step, to this file")(
      "samples", po::value<std::string>(),
      "of images, with --mode data: also write the images of step 1's global batch as the model "
      "sees "
      "them to this .npy, u8 (images, rows, columns, 3), for python3 -m analysis images")(
      "machine", po::value<std::string>(),
      "instead of times: measure ops of this deck (1 rank) or collectives (several) and add them "
      "to this machine file, for hyperslab plan --machine");
}

}  // namespace

Arguments bench_arguments() {
  Arguments args("[mpirun -np N] hyperslab bench DECK [--mode MODE] [options]",
                 "Times steps of DECK on generated tokens, the loader of its training files, or "
                 "the generation of tokens.");
  add_bench_options(args);
  args.add()(
      "kernel-table",
      "instead of times: the kernels that a step, or with --mode decode generation, takes on a GPU "
      "where an op has several, and why others do not suit; needs no GPU")(
      "draft", po::value<int>()->default_value(0),
      "decode: then also time the same texts with up to so many tokens guessed and read in a pass, "
      "as generate --draft does; 0: not");
  args.positional("DECK");
  return args;
}

}  // namespace hyperslab::cli
