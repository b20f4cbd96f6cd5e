#include "tests/simulation/explorer/small_world.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb::explorer {

const Topology& SmallTopology() {
  static const Topology& topology = *new Topology(
      Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = kRanks})
          .value());
  return topology;
}

const Placement& StartPlacement() {
  static const Placement& placement = *new Placement(Placement::Static(SmallTopology()));
  return placement;
}

core::Config SmallConfig() {
  core::Config config;
  config.settings.every_steps = 1;
  config.settings.min_gain = 0;
  config.settings.layers_per_chunk = 1;
  config.min_coverage = 0.1;
  config.session_grace = absl::Hours(1);
  return config;
}

std::string RunName(int run) { return absl::StrCat("run-", run); }

wire::Hello SmallIdentity() {
  wire::Hello hello;
  hello.job = std::string(kJob);  // g++ 12 misreads an assignment of so short a literal
  hello.world_size = kRanks;
  hello.shape = {.num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = kRanks};
  hello.vote_every = 1;
  hello.report_every = 1;
  hello.weight_bytes = 8;
  hello.staging_rows = 2;
  return hello;
}

MemberOptions SmallMemberOptions() {
  return {.identity = SmallIdentity(),
          .migration = {.weight_bytes = 8},
          .fits = [](const MigrationPlan&) { return absl::OkStatus(); }};
}

wire::LoadReport SmallReport() {
  wire::LoadReport report;
  report.counts = LoadMatrix::Constant(2, 4, 10);
  report.counts.leftCols(2) = 100;
  return report;
}

std::optional<Placement> Better(const Placement& running, int max_layers) {
  IndexMatrix slots = running.physical_to_logical_map();
  int changed = 0;
  for (Eigen::Index layer = 0; layer < slots.rows() && changed < max_layers; ++layer) {
    if (slots(layer, 1) != 1) continue;
    std::swap(slots(layer, 1), slots(layer, 2));
    ++changed;
  }
  if (changed == 0) return std::nullopt;
  return Placement::FromSlots(SmallTopology(), slots).value();
}

}  // namespace eplb::explorer
