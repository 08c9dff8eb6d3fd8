// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/config.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::optim {

/// The groups whose ranks hold other parts of this rank's tensors, for tensors that are updated as
/// a whole; null: no other rank does.
struct UpdateGroups {
  comm::Communicator* data = nullptr;
  comm::Communicator* tensor = nullptr;
  /// Elements that a rank may hold of it at a time, but at least a tensor of every rank: batches
  /// that fill a GPU, and little memory beside the state.
  Dim round_elements = Dim{1} << 24;
};

/// Updates the trained parameters. One per run; it owns its state, in an arena of its own. The
/// sharding says which elements this rank updates.
class Optimizer {
 public:
  /// A buffer that checkpoints keep, as "optimizer/<name>/<parameter>".
  struct State {
    std::string name;
    param::StateView values;
  };

  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  Optimizer(Optimizer&&) = delete;
  Optimizer& operator=(Optimizer&&) = delete;

  /// The moments, and the average of the weights if there is one.
  [[nodiscard]] std::vector<State> state() const;
  /// Clears the state and fills the tables of weight decays and rates.
  void initialize(Context& ctx) const;
  static constexpr const char* kAverage = "ema";  ///< its name in state()
  /// The exponential moving average of the masters; absent unless OptimizerConfig::averages().
  [[nodiscard]] const param::StateView& average() const { return average_; }
  /// Makes it equal to the masters of a range. The average must be there.
  void restart_average(Context& ctx, const param::ElementRange& range) const;
  /// Exchanges masters and average of a range, and sets the values that follow from the masters.
  void exchange_average(Context& ctx, const param::ElementRange& range) const;
  /// Once a step, before the ranges: updates the parts in this rank's ranges of tensors that cannot
  /// be updated range by range. Collective over the groups of make_optimizer. Enqueues on ctx.
  virtual void update_whole(Context& /*ctx*/, const ops::StepState* /*state*/,
                            const param::StateView& /*gradients*/) const {}
  /// Updates masters and values of the elements of `range` from `gradients`, by the scalars in
  /// `state`, and then their average. Enqueues on ctx.
  void update(Context& ctx, const ops::StepState* state, const param::StateView& gradients,
              const param::ElementRange& range) const;
  /// Its constants for finalize_step.
  [[nodiscard]] virtual ops::FinalizeConstants finalize_constants() const;
  /// One weight decay for every ops::kDecayGranule elements, laid out as the state is.
  [[nodiscard]] const param::StateView& decay() const { return decay_; }
  /// One factor of the learning rate likewise; absent if that is 1 for all parameters.
  [[nodiscard]] const param::StateView& rate() const { return rate_; }

 protected:
  /// `sharded`: true if state has entries for this rank's shards alone. A subclass takes its state
  /// and then the table of weight decays.
  Optimizer(const OptimizerConfig& config, const param::ParamGroup& group, bool sharded)
      : config_(config), group_(group), sharded_(sharded) {}
  void take_decay(Arena& arena);
  /// Nothing if all parameters learn at one rate.
  void take_rate(Arena& arena);
  [[nodiscard]] param::StateView take_state(Arena& arena, const std::string& name,
                                            DType dtype) const;
  [[nodiscard]] DType master_dtype() const { return group_.master().data.dtype(); }
  [[nodiscard]] const OptimizerConfig& config() const { return config_; }
  [[nodiscard]] const param::ParamGroup& group() const { return group_; }
  /// The operands of a range: masters, values and gradients, without its decays and rates.
  [[nodiscard]] ops::UpdateOperands operands_of(const param::StateView& gradients,
                                                const param::ElementRange& range) const;

 private:
  friend std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                                   const param::ParamGroup& group, bool sharded,
                                                   Arena& arena, const UpdateGroups& groups);
  [[nodiscard]] virtual std::vector<State> moments() const = 0;
  virtual void update_range(Context& ctx, const ops::StepState* state,
                            const ops::UpdateOperands& operands,
                            const param::ElementRange& range) const = 0;
  [[nodiscard]] param::StateView take_table(Arena& arena, const std::string& name) const;
  [[nodiscard]] View part_of(const param::StateView& table, const param::ElementRange& range) const;
  void fill_granules(Context& ctx, const param::StateView& table, const param::Param& param,
                     float value) const;

  OptimizerConfig config_;
  const param::ParamGroup& group_;
  bool sharded_;
  param::StateView decay_;
  param::StateView rate_;
  param::StateView average_;
};

/// The optimizer of the deck's optimizer.name for the group, which must outlive it. `sharded`:
/// sharding::Presence::shards_state(). The groups must outlive it, too.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                                        const param::ParamGroup& group,
                                                        bool sharded, Arena& arena,
                                                        const UpdateGroups& groups = {});

[[nodiscard]] ops::DecayRule decay_rule_of(const OptimizerConfig& config);

/// True if weight decay acts on parameters of a role: matrices and the head; embeddings, norms and
/// biases by choice.
[[nodiscard]] bool decays(const OptimizerConfig& config, param::Role role);

/// The weight decay of a parameter. Updates multiply it by the parameter's learning rate, so it is
/// divided by that rate's factor: a step takes the same share of every weight.
[[nodiscard]] float weight_decay_of(const OptimizerConfig& config, const param::Param& param);

}  // namespace hyperslab::optim
