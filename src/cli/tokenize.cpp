// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "command.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::cli {

ExitCode run_tokenize(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args("usage: hyperslab tokenize --vocab bytes --input FILE... --output FILE");
  args.add()("vocab", po::value<std::string>()->required(),
             "vocabulary; `bytes`: 256 bytes and an end-of-text id")(
      "input", po::value<std::vector<std::string>>()->multitoken()->required(),
      "text files; each ends a document, as does a line <|endoftext|>")(
      "output", po::value<std::string>()->required(), "token file: .bin, .npy or .h5");
  if (!args.parse(world, arguments)) return ExitCode::ok;
  if (world.size() > 1) {
    throw Error(ExitCode::usage, "tokenize runs on one rank; start it without mpirun")
        .on_all_ranks();
  }
  const auto tokenizer = io::open_tokenizer(args.get<std::string>("vocab"));
  const auto output = args.get<std::string>("output");
  const double start = now_seconds();
  const std::int64_t tokens = io::tokenize_files(*tokenizer, args.list("input"), output);
  fmt::print("{}: {} tokens of a vocabulary of {} in {:.2f} s\n", output, tokens,
             tokenizer->vocabulary(), now_seconds() - start);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
