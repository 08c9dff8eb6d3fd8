// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/text_file.hpp"
#include "training_run.hpp"

namespace hyperslab::train {
namespace {

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

ops::ProductTable read_products(const std::string& text, const std::string& where) {
  if (text.empty()) return {};
  try {
    return ops::ProductTable::of_text(text, where);
  } catch (const Error& error) {
    log::warn(error.what());
    return {};
  }
}

ops::ProductTable read_products_file(const std::string& path) {
  return read_products(text_of_file(path), path);
}

void write_products_file(const std::string& path, const ops::ProductTable& table) {
  const std::string text = table.text();
  if (text_of_file(path) == text) return;
  io::write_text_file(path, text);
}

ops::ProductTable merge_products(comm::World& world, const ops::ProductTable& mine,
                                 const ops::ProductTable& kept) {
  const std::vector<std::string> texts = world.gather(mine.text());
  ops::ProductTable all;
  for (const std::string& text : texts) {
    all.merge(ops::ProductTable::of_text(text, "the products of a rank"));
  }
  all.merge(kept);
  return ops::ProductTable::of_text(world.broadcast(all.text()), "the products of all ranks");
}

/// Before the first step, and before any graph is captured: ranks that run the same kind of product
/// run the same algorithm, now and when the run is resumed, so that replicas keep equal bits.
void TrainingRun::settle_products() {
  Context& ctx = trainer_->context();
  const std::string place = ops::product_place(ctx);
  if (place.empty() || first_step_ > last_step_) return;
  const std::string path = config_.run.directory + "/products.txt";
  if (is_first()) products_.merge(read_products_file(path));
  products_ = merge_products(world_, products_, {});
  const std::size_t foreign = products_.size() - products_.size_at(place);
  if (foreign > 0 && is_first()) {
    log::info(fmt::format("{} kept algorithms of matrix products are not for {}: not used", foreign,
                          place));
  }
  ops::adopt_products(ctx, products_);
  trainer_->rehearse(*loader_, first_step_);
  const ops::ProductTable used = merge_products(world_, ops::products_of(ctx), products_);
  ops::adopt_products(ctx, used);
  products_ = used;
  const std::int64_t chosen = world_.max(ops::chosen_products(ctx));
  agree(world_, [&] {
    if (is_first()) write_products_file(path, products_);
  });
  if (!is_first()) return;
  log::info(
      fmt::format("matrix products: {} kinds on this rank, at most {} chosen anew on a rank; "
                  "kept in {}",
                  ops::products_of(ctx).size(), chosen, path));
}

}  // namespace hyperslab::train
