#include "placement/decision/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "placement/bandwidth.h"

namespace eplb {
namespace {

struct BusyLink {
  double seconds = 0;
  double bytes_per_s = 0;
};

// Bytes of each GPU by direction and link class.
class Links {
 public:
  explicit Links(const Topology& topology)
      : topology_(topology), of_gpu_(static_cast<size_t>(topology.num_gpus())) {}

  void Carry(GpuId source, GpuId destination, double bytes) {
    const bool inside = topology_.NodeOf(source) == topology_.NodeOf(destination);
    OfGpu& from = of_gpu_[static_cast<size_t>(source.value)];
    OfGpu& to = of_gpu_[static_cast<size_t>(destination.value)];
    (inside ? from.intra_out : from.inter_out) += bytes;
    (inside ? to.intra_in : to.inter_in) += bytes;
  }

  // Both directions and both classes are links of their own and carry at the same time.
  BusyLink Busiest(const Costs& costs) const {
    BusyLink busiest;
    const auto consider = [&busiest](double bytes, double bytes_per_s) {
      const double seconds = Finite(bytes / bytes_per_s);
      if (seconds > busiest.seconds) busiest = {.seconds = seconds, .bytes_per_s = bytes_per_s};
    };
    for (const OfGpu& gpu : of_gpu_) {
      consider(std::max(gpu.intra_in, gpu.intra_out), costs.intra_bytes_per_s);
      consider(std::max(gpu.inter_in, gpu.inter_out), costs.inter_bytes_per_s);
    }
    return busiest;
  }

 private:
  struct OfGpu {
    double intra_in = 0;
    double intra_out = 0;
    double inter_in = 0;
    double inter_out = 0;
  };

  const Topology& topology_;
  std::vector<OfGpu> of_gpu_;
};

BusyLink BusiestLink(const MigrationPlan& plan, const Topology& topology, const Costs& costs) {
  Links links(topology);
  for (const Transfer& transfer : plan.transfers) {
    links.Carry(transfer.source, transfer.destination,
                static_cast<double>(BytesOf(transfer, costs.expert)));
  }
  return links.Busiest(costs);
}

}  // namespace

double Finite(double value) {
  constexpr double kMost = std::numeric_limits<double>::max();
  return std::isnan(value) ? 0 : std::clamp(value, -kMost, kMost);
}

bool Costs::priced() const {
  const bool costs_something = expert.weight_bytes > 0 || expert.state_bytes > 0 ||
                               replica_weight_bytes > 0 || replica_gradient_bytes > 0 ||
                               stall_seconds > 0;
  return token_seconds > 0 && costs_something;
}

absl::Status CheckCosts(const Costs& costs) {
  struct Field {
    const char* name;
    double value;
    bool above_zero;
  };
  for (const Field& field :
       {Field{"token_seconds", costs.token_seconds, false},
        Field{"intra_bytes_per_s", costs.intra_bytes_per_s, true},
        Field{"inter_bytes_per_s", costs.inter_bytes_per_s, true},
        Field{"stall_seconds", costs.stall_seconds, false},
        Field{"weight_bytes", static_cast<double>(costs.expert.weight_bytes), false},
        Field{"state_bytes", static_cast<double>(costs.expert.state_bytes), false},
        Field{"replica_weight_bytes", static_cast<double>(costs.replica_weight_bytes), false},
        Field{"replica_gradient_bytes", static_cast<double>(costs.replica_gradient_bytes), false},
        Field{"horizon_steps", static_cast<double>(costs.horizon_steps), false}}) {
    const bool high_enough = field.above_zero ? field.value > 0 : field.value >= 0;
    if (std::isfinite(field.value) && high_enough) continue;
    return InvalidInput("costs: ", field.name, " is ", field.value, ", expected a finite number ",
                        field.above_zero ? "above 0" : ">= 0");
  }
  return absl::OkStatus();
}

int64_t BytesOf(const Transfer& transfer, const MigrationOptions& expert) {
  return (transfer.weight_slots.empty() ? 0 : expert.weight_bytes) +
         (transfer.state_slots.empty() ? 0 : expert.state_bytes);
}

double LinkSeconds(const MigrationPlan& plan, const Topology& topology, const Costs& costs) {
  return BusiestLink(plan, topology, costs).seconds;
}

absl::StatusOr<MigrationCost> PriceMigration(const Placement& current, const Placement& target,
                                             const Costs& costs) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan, PlanTransfers(current, target, {}, costs.expert));
  MigrationCost cost{.transfers = static_cast<int64_t>(plan.transfers.size()),
                     .bytes = plan.link_bytes};
  const bool moves = !plan.transfers.empty() || !plan.local.empty();
  if (!moves) return cost;
  const BusyLink busiest = BusiestLink(plan, target.topology(), costs);
  cost.seconds = Finite(busiest.seconds + costs.stall_seconds);
  cost.bytes_per_s = busiest.bytes_per_s;
  return cost;
}

std::string MigrationText(const MigrationCost& migration, const Costs& costs) {
  constexpr double kLeastShown = 1e-3;  // votes and copies alone take longer than this
  if (costs.bandwidths != BandwidthSource::kAssumed) {
    return absl::StrCat(SecondsText(migration.seconds), " of migration");
  }
  if (migration.bytes_per_s <= 0) return "a migration within the GPUs (not measured yet)";
  return absl::StrCat(
      "a migration of ", BytesText(migration.bytes),
      " (not measured yet; estimated from its bytes at ", BandwidthText(migration.bytes_per_s),
      ": ", migration.seconds >= kLeastShown ? SecondsText(migration.seconds) : "under 1 ms", ")");
}

double ReplicaSecondsPerStep(const Placement& placement, const Costs& costs) {
  if (costs.replica_weight_bytes == 0 && costs.replica_gradient_bytes == 0) return 0;
  const Topology& topology = placement.topology();
  Links links(topology);
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const auto slots = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      const GpuId home = topology.GpuOf(SlotId{slots.front()});
      for (const int32_t slot : slots.subspan(1)) {
        const GpuId gpu = topology.GpuOf(SlotId{slot});
        if (gpu == home) continue;
        links.Carry(home, gpu, static_cast<double>(costs.replica_weight_bytes));
        links.Carry(gpu, home, static_cast<double>(costs.replica_gradient_bytes));
      }
    }
  }
  return links.Busiest(costs).seconds;
}

}  // namespace eplb
