// A recorded run, small enough to work its figures out by hand: 2 GPUs, 1 layer of 4 experts, 12
// steps. The static layout has GPU loads 20 and 4 (balancedness 0.6, slowdown 20 / 12); the other
// placement has 12 and 12. An even step lasts 30 ms, so a static one 50 ms; a boundary takes 2 ms,
// one that switches 10 ms, 6 ms of them after the vote; 5 ms of a step are work before it waits.
#pragma once

#include <string>
#include <vector>

#include "client/run_log/run_directory.h"

namespace eplb::cli {

inline constexpr int64_t kSmallSteps = 12;
inline constexpr double kSmallBegan = 1.7e9;  // seconds since 1970

inline Topology SmallTopology() {
  return *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2});
}

inline Placement StaticPlacement() { return Placement::Static(SmallTopology()); }

inline Placement EvenPlacement() {
  IndexMatrix slots(1, 4);
  slots << 0, 2, 1, 3;
  return *Placement::FromSlots(SmallTopology(), slots);
}

// One placement switched to after `step`.
struct SmallSwitch {
  int64_t step = 0;
  bool even = true;
  int64_t decision = 1;
  std::string policy = "incremental";
  std::string asked_by = {};
};

inline RunDirectory SmallRun(const std::vector<SmallSwitch>& switches) {
  RunDirectory run;
  run.report.job = "demo";
  run.report.world_size = 2;
  run.report.began_at = kSmallBegan;
  run.report.even_step_seconds = 0.03;
  run.report.steps_asked = kSmallSteps;
  run.report.bytes_verified = 1000;
  run.placements.push_back({.digest = DigestOf(StaticPlacement()), .placement = StaticPlacement()});
  for (const SmallSwitch& one : switches) {
    const Placement placement = one.even ? EvenPlacement() : StaticPlacement();
    const auto version = static_cast<int64_t>(run.placements.size());
    const std::string reason = "because of decision " + std::to_string(one.decision);
    run.report.switches.push_back({.step = one.step,
                                   .version = version,
                                   .decided_first_step = 0,
                                   .decided_last_step = 3,
                                   .decision = one.decision,
                                   .policy = one.policy,
                                   .asked_by = one.asked_by,
                                   .reason = reason,
                                   .bytes_moved = 2000000,
                                   .pause_seconds = 0.006,
                                   .bytes_verified = 500});
    run.placements.push_back({.step = one.step + 1,
                              .version = version,
                              .digest = DigestOf(placement),
                              .placement = placement,
                              .decided_first_step = 0,
                              .decided_last_step = 3,
                              .decision = one.decision,
                              .policy = one.policy,
                              .asked_by = one.asked_by,
                              .reason = reason});
  }
  LoadMatrix counts(1, 4);
  counts << 10, 10, 2, 2;
  double began = 0;
  size_t current = 0;
  for (int64_t step = 0; step < kSmallSteps; ++step) {
    while (current + 1 < run.placements.size() && run.placements[current + 1].step <= step) {
      ++current;
    }
    const bool even = run.placements[current].placement == EvenPlacement();
    const bool last_under_it =
        current + 1 < run.placements.size() && run.placements[current + 1].step == step + 1;
    const double boundary = last_under_it ? 0.010 : 0.002;
    run.step_loads.push_back(*Load::FromCounts(counts));
    run.report.steps.push_back({.step = step,
                                .version = run.placements[current].version,
                                .balancedness = even ? 1 : 0.6,
                                .balancedness_static = 0.6,
                                .began = began,
                                .seconds = (even ? 0.03 : 0.05) + boundary,
                                .boundary_seconds = boundary,
                                .work_seconds = 0.005});
    began += run.report.steps.back().seconds;
  }
  return run;
}

// An event while `step` ran.
inline LoggedEvent EventAt(const RunDirectory& run, int64_t step, const std::string& name) {
  const double time = kSmallBegan + run.report.steps[static_cast<size_t>(step)].began + 0.001;
  return {.sequence = step + 1,
          .unix_micros = static_cast<int64_t>(time * 1e6),
          .name = name,
          .reason = name + " it is",
          .actor = "uid 1000 (alice)",
          .before = {},
          .after = {}};
}

}  // namespace eplb::cli
