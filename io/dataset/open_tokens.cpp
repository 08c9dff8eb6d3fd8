// SPDX-License-Identifier: Apache-2.0
#include "dataset/glob_files.hpp"
#include "dataset/shard.hpp"
#include "dataset/synthetic.hpp"
#include "dataset/token_files.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

std::unique_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths, RawIds raw_ids,
                                         std::int64_t vocabulary, std::uint64_t seed,
                                         bool loss_mask, bool join_files,
                                         const ColumnNeeds& needs) {
  require(vocabulary > 0 && vocabulary <= (1LL << 31), "tokens need a vocabulary");
  if (paths == std::vector<std::string>{"synthetic"}) {
    if (loss_mask) {
      throw Error(
          ExitCode::data,
          "synthetic tokens: expected a loss mask, found none; set data.loss_mask to false");
    }
    if (needs.columns.count() > 0 && needs.all) {
      throw Error(ExitCode::data,
                  "synthetic tokens: expected values of tokens, which data.token_weights or "
                  "train.loss asks for, found none; name token files that have them");
    }
    return std::make_unique<Synthetic>(vocabulary, seed);
  }
  if (paths.empty()) {
    throw Error(ExitCode::data,
                "no token files: expected paths, patterns or 'synthetic' in section data, "
                "found an empty list; name the files");
  }
  const IdType raw = raw_ids == RawIds::uint16 ? IdType::u16 : IdType::u32;
  std::vector<Shard> shards;
  std::vector<std::size_t> first_shards;
  for (const std::string& path : paths) {
    if (path == "synthetic") {
      throw Error(
          ExitCode::data,
          "synthetic tokens: expected 'synthetic' alone, found it beside files; remove one");
    }
    first_shards.push_back(shards.size());
    for (const std::string& file : glob_files(path)) {
      shards.push_back(open_shard(file, raw, loss_mask, needs));
    }
  }
  return std::make_unique<TokenFiles>(std::move(shards), vocabulary, std::move(first_shards),
                                      join_files);
}

}  // namespace hyperslab::io
