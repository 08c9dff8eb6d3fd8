// SPDX-License-Identifier: Apache-2.0
#include "fixtures.hpp"

#include <stdlib.h>

#include <barrier>
#include <filesystem>
#include <thread>

#include "hyperslab/core/error.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;

/// What the threads of one job share.
struct Job {
  explicit Job(std::size_t ranks) : texts(ranks), barrier(static_cast<std::ptrdiff_t>(ranks)) {}
  std::vector<std::string> texts;
  std::barrier<> barrier;
};

class ThreadPeers final : public comm::Peers {
 public:
  ThreadPeers(Job& job, int rank) : job_(job), rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(job_.texts.size()); }
  [[nodiscard]] const std::string& host() const override { return host_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    job_.texts[static_cast<std::size_t>(rank_)] = text;
    job_.barrier.arrive_and_wait();
    std::vector<std::string> all = job_.texts;
    job_.barrier.arrive_and_wait();
    return all;
  }

 private:
  Job& job_;
  int rank_;
  std::string host_ = "host";
};

}  // namespace

Globals make_globals(const std::map<std::string, Shape>& shapes, float seed) {
  Globals globals;
  for (const auto& [name, shape] : shapes) {
    Global& global = globals[name];
    global.shape = shape;
    global.values.resize(static_cast<std::size_t>(shape.numel()));
    const float base = seed + 0.125F * static_cast<float>(globals.size());
    for (std::size_t i = 0; i < global.values.size(); ++i) {
      global.values[i] = base + static_cast<float>(i);
    }
  }
  return globals;
}

std::vector<float> cut(const Global& global, const Hyperslab& part) {
  std::vector<float> out;
  const int rank = global.shape.rank();
  for (Dim i = 0; i < part.count.numel(); ++i) {
    Dim rest = i;
    Dim index = 0;
    Dim stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      index += (part.offset[d] + rest % part.count[d]) * stride;
      rest /= part.count[d];
      stride *= global.shape[d];
    }
    out.push_back(global.values[static_cast<std::size_t>(index)]);
  }
  return out;
}

std::vector<Hyperslab> random_partition(const Shape& shape, int cuts, std::mt19937& rng) {
  std::vector<Hyperslab> parts{Hyperslab::whole(shape)};
  for (int c = 0; c < cuts && shape.rank() > 0; ++c) {
    const std::size_t which = rng() % parts.size();
    const Hyperslab part = parts[which];
    const int dim = static_cast<int>(rng() % static_cast<unsigned>(shape.rank()));
    const Dim at = static_cast<Dim>(rng() % static_cast<std::uint64_t>(part.count[dim] + 1));
    parts[which] = part.narrow(dim, 0, at);
    parts.push_back(part.narrow(dim, at, part.count[dim] - at));
  }
  return parts;
}

void RankSlabs::add(const std::string& tensor, const Global& global, const Hyperslab& part) {
  memory.push_back(cut(global, part));
  slabs.push_back({tensor, global.shape, part,
                   CView(memory.back().data(), DType::f32, Device::cpu, part.count)});
}

std::vector<RankSlabs> scatter(const Globals& globals, int ranks, int cuts, std::mt19937& rng) {
  std::vector<RankSlabs> out(static_cast<std::size_t>(ranks));
  for (const auto& [name, global] : globals) {
    for (const Hyperslab& part : random_partition(global.shape, cuts, rng)) {
      out[rng() % out.size()].add(name, global, part);
    }
  }
  return out;
}

std::vector<RankSlabs> whole(const Globals& globals) {
  std::vector<RankSlabs> out(1);
  for (const auto& [name, global] : globals)
    out[0].add(name, global, Hyperslab::whole(global.shape));
  return out;
}

std::vector<std::string> save_all(const std::string& directory, const io::CheckpointMeta& meta,
                                  const std::vector<RankSlabs>& ranks,
                                  const io::SaveOptions& options) {
  Job job(ranks.size());
  std::vector<std::string> errors(ranks.size());
  const auto save = [&](std::size_t rank) {
    ThreadPeers peers(job, static_cast<int>(rank));
    try {
      io::save_checkpoint(peers, directory, meta, ranks[rank].slabs, options);
    } catch (const Error& error) {
      errors[rank] = error.what();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) threads.emplace_back(save, rank);
    save(0);
  }
  return errors;
}

void save_well(const std::string& directory, std::int64_t step, const Globals& globals) {
  io::CheckpointMeta meta;
  meta.step = step;
  ASSERT_EQ(save_all(directory, meta, whole(globals)), std::vector<std::string>{""});
}

Globals read_whole(const io::CheckpointReader& reader) {
  Globals globals;
  std::vector<io::SlabTarget> targets;
  for (const auto& [name, entry] : reader.tensors()) {
    Global& global = globals[name];
    global.shape = entry.global_shape;
    global.values.assign(static_cast<std::size_t>(entry.global_shape.numel()), -1.0F);
    const Hyperslab part = Hyperslab::whole(global.shape);
    targets.push_back({name, global.shape, part,
                       View(global.values.data(), DType::f32, Device::cpu, global.shape)});
  }
  reader.read(targets);
  return globals;
}

void expect_same(const Globals& found, const Globals& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, global] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name).shape == global.shape) << name;
    EXPECT_TRUE(found.at(name).values == global.values) << name << " differs";
  }
}

}  // namespace hyperslab::test
