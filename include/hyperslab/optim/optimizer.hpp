// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/mesh/mesh.hpp"
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
  comm::Communicator* expert_data = nullptr;  ///< in place of `data`, for tensors of experts
  [[nodiscard]] static UpdateGroups of(const mesh::Mesh& mesh) {
    return {.data = &mesh.group(mesh::kShards),
            .tensor = &mesh.group(mesh::Axis::tensor),
            .expert_data = &mesh.group(mesh::kExpertShards)};
  }
};

/// The place of an optimizer's state.
struct StatePlace {
  bool sharded = false;  ///< entries for this rank's shards alone
  Arena& device;         ///< state, and what updates need besides
  /// State that rests on the host with the masters.
  struct OnHost {
    Arena& arena;
    std::span<const param::ElementRange> ranges;  ///< update() of a step takes them in this order
    std::size_t resident_bytes = 0;  ///< state that stays on the device from step to step
  };
  std::optional<OnHost> host = std::nullopt;
};

class StateTransit;

/// Updates the trained parameters. One per run; it owns its state, in an arena of its own. The
/// sharding says which elements this rank updates.
class Optimizer {
 public:
  /// A buffer that checkpoints keep, as "optimizer/<name>/<parameter>".
  struct State {
    std::string name;
    param::StateView values;
  };

  virtual ~Optimizer();
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
  /// `state`, and then their average. Enqueues on ctx. State on the host comes and goes in chunks,
  /// beside the updates of other chunks.
  void update(Context& ctx, const ops::StepState* state, const param::StateView& gradients,
              const param::ElementRange& range) const;
  /// True if state rests on the host.
  [[nodiscard]] bool moves_state() const { return transit_ != nullptr; }
  /// Bytes of state that come from the host in a step, by range; as much goes back. Empty if no
  /// state rests there.
  [[nodiscard]] std::vector<std::size_t> moved_bytes() const;
  /// Once a step, before the ranges: updates see state that work enqueued on ctx so far has
  /// written, as a load does.
  void begin_update(Context& ctx) const;
  /// Makes work that is enqueued on ctx after this call see masters and state of all updates.
  void wait_for_state(Context& ctx) const;
  /// Its constants for finalize_step.
  [[nodiscard]] virtual ops::FinalizeConstants finalize_constants() const;
  /// One weight decay for every ops::kDecayGranule elements, laid out as the state is.
  [[nodiscard]] const param::StateView& decay() const { return decay_; }
  /// One factor of the learning rate likewise; absent if that is 1 for all parameters.
  [[nodiscard]] const param::StateView& rate() const { return rate_; }

 protected:
  /// A subclass takes its state and then the table of weight decays.
  Optimizer(const OptimizerConfig& config, const param::ParamGroup& group, StatePlace place);
  void take_decay();
  /// Nothing if all parameters learn at one rate.
  void take_rate();
  [[nodiscard]] param::StateView take_state(const std::string& name, DType dtype) const;
  [[nodiscard]] DType master_dtype() const { return group_.master().data.dtype(); }
  [[nodiscard]] const OptimizerConfig& config() const { return config_; }
  [[nodiscard]] const param::ParamGroup& group() const { return group_; }
  /// The operands of a range: masters, values and gradients, without its decays and rates.
  [[nodiscard]] ops::UpdateOperands operands_of(const param::StateView& gradients,
                                                const param::ElementRange& range) const;

 private:
  friend std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                                   const param::ParamGroup& group,
                                                   const StatePlace& place,
                                                   const UpdateGroups& groups);
  [[nodiscard]] virtual std::vector<State> moments() const = 0;
  /// `moments`: the range's part of each of moments(), on the device.
  virtual void update_range(Context& ctx, const ops::StepState* state,
                            const ops::UpdateOperands& operands, std::span<const View> moments,
                            const param::ElementRange& range) const = 0;
  /// `updated`: the range's part of each of updated_, on the device.
  void update_on_device(Context& ctx, const ops::StepState* scalars, ops::UpdateOperands operands,
                        std::span<const View> updated, const param::ElementRange& range) const;
  [[nodiscard]] param::StateView take_table(const std::string& name) const;
  [[nodiscard]] View part_of(const param::StateView& table, const param::ElementRange& range) const;
  void fill_granules(Context& ctx, const param::StateView& table, const param::Param& param,
                     float value) const;

  OptimizerConfig config_;
  const param::ParamGroup& group_;
  StatePlace place_;
  param::StateView decay_;
  param::StateView rate_;
  param::StateView average_;
  std::vector<param::StateView> updated_;  ///< masters, moments, average
  std::unique_ptr<StateTransit> transit_;  ///< if state rests on the host
};

/// The optimizer of the deck's optimizer.name for the group, which must outlive it, as the arenas
/// and the groups must. `place`: as sharding::Presence has it of masters.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                                        const param::ParamGroup& group,
                                                        const StatePlace& place,
                                                        const UpdateGroups& groups = {});

[[nodiscard]] ops::DecayRule decay_rule_of(const OptimizerConfig& config);

/// True if weight decay acts on parameters of a role: matrices and the head; embeddings, norms and
/// biases by choice.
[[nodiscard]] bool decays(const OptimizerConfig& config, param::Role role);

/// The weight decay of a parameter. Updates multiply it by the parameter's learning rate, so it is
/// divided by that rate's factor: a step takes the same share of every weight.
[[nodiscard]] float weight_decay_of(const OptimizerConfig& config, const param::Param& param);

}  // namespace hyperslab::optim
