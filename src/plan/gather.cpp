// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/gather.hpp"

#include <map>
#include <utility>

#include "hyperslab/comm/group_role.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::plan {
namespace {

/// Beyond the tickets of the step's own collectives.
constexpr std::uint64_t kFirstTicket = std::uint64_t{1} << 48;

/// Ops of one microbatch's forward or backward.
using Pass = std::pair<Phase, int>;

bool gathers_for(const Operation& op) {
  return op.kind == Operation::Kind::compute && op.microbatch >= 0 &&
         (op.phase == Phase::forward || op.phase == Phase::backward);
}

class Gathers {
 public:
  /// `ticket`: of the next gather.
  Gathers(const OperationList& list, int layers, double bytes, std::uint64_t& ticket)
      : list_(list), layers_(layers), bytes_(bytes), ticket_(ticket) {
    for (const Operation& op : list) {
      if (gathers_for(op)) ++passes_[{op.phase, op.microbatch}].ops;
    }
  }

  OperationList run() {
    OperationList out;
    out.reserve(list_.size());
    for (const Operation& op : list_) {
      if (gathers_for(op)) before(out, op);
      out.push_back(op);
    }
    return out;
  }

 private:
  struct Progress {
    int ops = 0;
    int seen = 0;
    int layer = 0;            ///< the next to be used
    std::uint64_t ahead = 0;  ///< ticket of its gather; 0: none
  };

  void start(OperationList& out, const Operation& op, Progress& pass) {
    pass.ahead = ticket_;
    out.push_back({.kind = Operation::Kind::collective,
                   .name = "all_gather",
                   .phase = op.phase,
                   .microbatch = op.microbatch,
                   .group = comm::name_of(comm::GroupRole::data),
                   .ticket = ticket_++,
                   .bytes = bytes_ / layers_});
  }

  /// Layers are equally many ops, as near as that goes; of more layers than ops one op uses
  /// several.
  void before(OperationList& out, const Operation& op) {
    Progress& pass = passes_[{op.phase, op.microbatch}];
    while (pass.layer < layers_ && pass.seen >= pass.layer * pass.ops / layers_) {
      if (pass.ahead == 0) start(out, op, pass);
      const std::uint64_t needed = pass.ahead;
      if (++pass.layer < layers_) start(out, op, pass);
      out.push_back({.kind = Operation::Kind::wait,
                     .phase = op.phase,
                     .group = comm::name_of(comm::GroupRole::data),
                     .ticket = needed});
    }
    ++pass.seen;
  }

  const OperationList& list_;
  int layers_;
  double bytes_;
  std::uint64_t& ticket_;
  std::map<Pass, Progress> passes_;
};

}  // namespace

void add_parameter_gathers(Plan& plan, int layers, double bytes_per_parameter) {
  require(layers > 0, "parameters of no layer to gather");
  double count = 0;
  for (const auto& [name, shape] : plan.parameters) count += static_cast<double>(shape.numel());
  std::uint64_t ticket = kFirstTicket;
  for (OperationList& step : plan.operations) {
    step = Gathers(step, layers, count * bytes_per_parameter, ticket).run();
  }
}

}  // namespace hyperslab::plan
