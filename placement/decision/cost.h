// Cost of a placement in seconds besides the load of its GPUs: the migration to it, and in training
// its replicas. threads: safe, no state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/migration_plan.h"
#include "placement/placement.h"

namespace eplb {

// Origin of the bandwidths in Costs.
enum class BandwidthSource {
  kGiven,     // the caller's own prices
  kAssumed,   // defaults that stand in until a switch is measured
  kMeasured,  // the job's own switches
};

// Bandwidths are of one direction of one GPU's link.
struct Costs {
  double token_seconds = 0;          // seconds of the fullest GPU per token; 0: unknown
  double intra_bytes_per_s = 450e9;  // between GPUs of a node: NVLink4
  double inter_bytes_per_s = 50e9;   // between nodes: a NIC of 400 Gb/s
  BandwidthSource bandwidths = BandwidthSource::kGiven;
  double stall_seconds = 0;  // duration of a migration besides its bytes
  MigrationOptions expert;   // bytes of an expert by role, and where its state lives
  // Training: what a step sends from a primary to each replica on another GPU, and back.
  int64_t replica_weight_bytes = 0;
  int64_t replica_gradient_bytes = 0;
  int64_t horizon_steps = 0;  // a placement is trusted no longer than this; 0: not known

  // False: only the fall of the peak load can be judged.
  bool priced() const;
};

// errors: InvalidArgument, naming the field: negative, not finite, a bandwidth that is not above 0.
absl::Status CheckCosts(const Costs& costs);

// Returns the bytes that a transfer carries.
int64_t BytesOf(const Transfer& transfer, const MigrationOptions& expert);

// The busiest link's bytes / bandwidth under `plan`, without a stall. Finite. cost: O(T + G).
double LinkSeconds(const MigrationPlan& plan, const Topology& topology, const Costs& costs);

struct MigrationCost {
  int64_t transfers = 0;  // between GPUs
  int64_t bytes = 0;
  double seconds = 0;  // the busiest link's bytes / bandwidth, plus the stall; 0 when nothing moves
  double bytes_per_s = 0;  // bandwidth of that link; 0 when no link carries anything
};

// The links' bytes are those of PlanMigration. Finite. errors: those of PlanMigration.
absl::StatusOr<MigrationCost> PriceMigration(const Placement& current, const Placement& target,
                                             const Costs& costs);

// "18 ms of migration". While the bandwidths are assumed: "a migration of 42 KB (not measured yet;
// estimated from its bytes at 450 GB/s: under 1 ms)".
std::string MigrationText(const MigrationCost& migration, const Costs& costs);

// Returns the seconds per step in which the busiest link serves replicas outside their primary's
// GPU. DeepSeek-V3 with one replica per GPU and layer: 58 layers * (88 MB weights + 176 MB fp32
// gradients) / 50 GB/s = 306 ms. Finite. cost: O(L * S).
double ReplicaSecondsPerStep(const Placement& placement, const Costs& costs);

// `value` where it is finite, else the nearest double that is (0 for a NaN).
double Finite(double value);

}  // namespace eplb
