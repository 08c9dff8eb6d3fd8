// SPDX-License-Identifier: Apache-2.0
#include "spikes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_problem.hpp"

namespace hyperslab::run {
namespace {

using nlohmann::json;

constexpr double kLeastRelativeDeviation = 1e-3;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // each counts at most one a step
constexpr const char* kRecord = "the checkpoint's record of spikes";

json json_of(const RunningMoments& moments) { return {moments.mean, moments.variance}; }

[[noreturn]] void refuse(const std::string& what, const std::string& problem) {
  throw Error(ExitCode::checkpoint, what + " cannot be read: " + problem);
}

/// A whole number from `least` to `most` under a key of a record.
std::int64_t whole(const json& record, const char* key, std::int64_t least,
                   std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const json& value = record.at(key);
  const bool fits = value.is_number_integer() && value.get<std::int64_t>() >= least &&
                    value.get<std::int64_t>() <= most &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
  if (!fits) throw std::out_of_range(std::string("'") + key + "' is out of range");
  return value.get<std::int64_t>();
}

RunningMoments moments_of(const json& record, const char* key) {
  const json& value = record.at(key);
  const RunningMoments moments = {value.at(0).get<double>(), value.at(1).get<double>()};
  const bool fits =
      std::isfinite(moments.mean) && std::isfinite(moments.variance) && moments.variance >= 0;
  if (!fits) throw std::out_of_range(std::string("'") + key + "' is out of range");
  return moments;
}

}  // namespace

double RunningMoments::z_score(double value) const {
  const double deviation = std::max(std::sqrt(variance), kLeastRelativeDeviation * std::abs(mean));
  return deviation > 0 ? (value - mean) / deviation : 0;
}

void RunningMoments::add(double value, std::int64_t n, std::int64_t window) {
  const double weight =
      std::max(1.0 / static_cast<double>(n), 2.0 / (static_cast<double>(window) + 1));
  const double difference = value - mean;
  mean += weight * difference;
  variance = (1 - weight) * (variance + weight * difference * difference);
}

SpikeDetector::Verdict SpikeDetector::look(double loss, double norm) const {
  Verdict verdict;
  if (state_.seen < config_.warmup) return verdict;
  verdict.loss_z = state_.loss.z_score(loss);
  verdict.norm_z = state_.norm.z_score(norm);
  verdict.is_spike = verdict.z() > config_.z_score;
  return verdict;
}

SpikeDetector::Verdict SpikeDetector::judge(double loss, double norm) {
  Verdict verdict = look(loss, norm);
  if (!verdict.is_spike) {
    state_.in_a_row = 0;
    ++state_.seen;
    state_.loss.add(loss, state_.seen, config_.window);
    state_.norm.add(norm, state_.seen, config_.window);
  } else if (++state_.in_a_row >= kMostInARow) {
    verdict.begins_anew = true;
    state_ = {};
  }
  return verdict;
}

/// A step without weights of targets has no loss, and one that is not finite is not a matter of
/// degree.
bool Spikes::is_counted(const ops::StepResult& result) const {
  return policy() != train::SpikePolicy::ignore && result.skipped == 0 && result.weights > 0 &&
         std::isfinite(result.gradient_norm);
}

bool Spikes::judge_before_update(std::int64_t step, double loss, double norm) {
  if (!std::isfinite(loss) || !std::isfinite(norm)) return false;
  const SpikeDetector::Verdict verdict = detector_.judge(loss, norm);
  judged_[step] = verdict;
  return verdict.is_spike;
}

std::optional<Spikes::Spike> Spikes::take(const ops::StepResult& result) {
  if (!is_counted(result)) return std::nullopt;
  const double loss = result.loss();
  Spike spike{result.step, loss, result.gradient_norm, {}, false};
  if (leaves_out(result.step)) {
    spike.verdict = detector_.look(loss, result.gradient_norm);
    spike.left_out = true;
  } else if (const auto judged = judged_.extract(result.step)) {
    spike.verdict = judged.mapped();
    spike.left_out = spike.verdict.is_spike;
  } else {
    spike.verdict = detector_.judge(loss, result.gradient_norm);
  }
  if (!spike.verdict.is_spike && !spike.left_out) return std::nullopt;
  ++spikes_;
  if (spike.left_out) ++skipped_;
  return spike;
}

void Spikes::go_back_for(std::int64_t step) {
  left_out_.insert(step);
  ++roll_backs_;
}

std::string Spikes::checkpoint_text() const {
  if (policy() == train::SpikePolicy::ignore) return "";
  const SpikeDetector::State& state = detector_.state();
  return json{{"seen", state.seen},          {"in_a_row", state.in_a_row},
              {"loss", json_of(state.loss)}, {"norm", json_of(state.norm)},
              {"spikes", spikes_},           {"skipped", skipped_},
              {"left_out", left_out_},       {"roll_backs", roll_backs_}}
      .dump();
}

void Spikes::restore(const std::string& text) {
  detector_.set_state({});
  judged_.clear();
  spikes_ = skipped_ = 0;
  if (text.empty()) return;
  try {
    const json value = json::parse(text);
    detector_.set_state({whole(value, "seen", 0, kMostSteps),
                         static_cast<int>(whole(value, "in_a_row", 0, SpikeDetector::kMostInARow)),
                         moments_of(value, "loss"), moments_of(value, "norm")});
    spikes_ = whole(value, "spikes", 0, kMostSteps);
    skipped_ = whole(value, "skipped", 0, kMostSteps);
  } catch (const json::exception& error) {
    refuse(kRecord, io::json_problem(error));
  } catch (const std::out_of_range& error) {
    refuse(kRecord, error.what());
  }
  add_left_out(text, kRecord);
}

std::string Spikes::left_out_text() const {
  return json{{"left_out", left_out_}, {"roll_backs", roll_backs_}}.dump();
}

void Spikes::add_left_out(const std::string& text, const std::string& where) {
  if (text.empty()) return;
  try {
    const json value = json::parse(text);
    auto left_out = value.at("left_out").get<std::set<std::int64_t>>();
    if (!left_out.empty() && *left_out.begin() < 1) {
      throw std::out_of_range("'left_out' is out of range");
    }
    // Records of earlier programs have another name.
    const char* const key = value.contains("walk_backs") ? "walk_backs" : "roll_backs";
    roll_backs_ = std::max(roll_backs_, whole(value, key, 0, kMostSteps));
    left_out_.merge(left_out);
  } catch (const json::exception& error) {
    refuse(where, io::json_problem(error));
  } catch (const std::out_of_range& error) {
    refuse(where, error.what());
  }
}

}  // namespace hyperslab::run
