#include "placement/search/bound.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/search/domain.h"
#include "placement/search/node_partition.h"

namespace eplb {

namespace {

absl::Status CheckFits(const char* place, const Domain& domain, int32_t experts) {
  if (domain.slots.empty() || domain.num_slots() < experts) {
    return absl::InvalidArgumentError(absl::StrCat(domain.slots.empty() ? 0 : domain.num_slots(),
                                                   " usable slots ", place, " for ", experts,
                                                   " experts"));
  }
  return absl::OkStatus();
}

// Bounds of layers whose expert groups each stay on one node.
class StrictBounds {
 public:
  StrictBounds(const Topology& topology, const GpuSpeeds& speeds, bool any_split)
      : topology_(topology), any_split_(any_split) {
    const int32_t gpus = topology.num_gpus() / topology.num_nodes();
    for (int32_t node = 0; node < topology.num_nodes(); ++node) {
      Domain domain = DomainOf(topology, speeds, node * gpus, (node + 1) * gpus);
      const auto same = std::find_if(nodes_.begin(), nodes_.end(), [&](const Domain& other) {
        return other.slots == domain.slots && other.speed == domain.speed;
      });
      kind_of_node_.push_back(static_cast<int32_t>(same - nodes_.begin()));
      nodes_.push_back(std::move(domain));
    }
  }

  absl::Status Check() const {
    for (const Domain& node : nodes_) {
      EPLB_RETURN_IF_ERROR(
          CheckFits("on a node", node, topology_.num_experts() / topology_.num_nodes()));
    }
    return absl::OkStatus();
  }

  bool CanBound() const { return CanEnumerate(ProblemFor({})); }

  double BoundOf(std::span<const double> load) const {
    return CheapestPartitions(ProblemFor(load), 1).front().cost;
  }

 private:
  PartitionProblem ProblemFor(std::span<const double> load) const {
    const auto per_group = static_cast<size_t>(topology_.num_experts() / topology_.num_groups());
    return {.num_groups = topology_.num_groups(),
            .num_nodes = topology_.num_nodes(),
            .kind_of_node = kind_of_node_,
            .cost = [this, load, per_group](int32_t kind, const std::vector<int32_t>& groups) {
              Domain domain = nodes_[static_cast<size_t>(kind)];
              for (const int32_t group : groups) {
                const auto part = load.subspan(static_cast<size_t>(group) * per_group, per_group);
                domain.load.insert(domain.load.end(), part.begin(), part.end());
              }
              return DomainBound(domain, any_split_);
            }};
  }

  const Topology& topology_;
  bool any_split_;
  std::vector<Domain> nodes_;
  std::vector<int32_t> kind_of_node_;
};

absl::Status CheckShapes(const Load& load, const Topology& topology, const GpuSpeeds& speeds) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  if (speeds.num_gpus() != topology.num_gpus()) {
    return absl::InvalidArgumentError(
        absl::StrCat(speeds.num_gpus(), " GPU speeds for ", topology.num_gpus(), " GPUs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology,
                                                const BoundOptions& options) {
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const GpuSpeeds& speeds = options.speeds == nullptr ? equal : *options.speeds;
  EPLB_RETURN_IF_ERROR(CheckShapes(load, topology, speeds));
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, options.hierarchy));
  Domain whole = DomainOf(topology, speeds, 0, topology.num_gpus());
  EPLB_RETURN_IF_ERROR(CheckFits("on all GPUs", whole, topology.num_experts()));
  std::optional<StrictBounds> strict;
  if (options.hierarchy == Hierarchy::kStrict) {
    strict.emplace(topology, speeds, options.any_split);
    EPLB_RETURN_IF_ERROR(strict->Check());
    if (!strict->CanBound()) strict.reset();
  }
  const RealMatrix tokens = load.ToDouble();
  std::vector<double> bounds;
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    const std::span row(&tokens(layer, 0), static_cast<size_t>(tokens.cols()));
    if (strict.has_value()) {
      bounds.push_back(strict->BoundOf(row));
    } else {
      whole.load.assign(row.begin(), row.end());
      bounds.push_back(DomainBound(whole, options.any_split));
    }
  }
  return bounds;
}

namespace {

constexpr int kMaxBisections = 40;
constexpr double kPrecision = 1e-9;
// k beyond this has never bound in practice, and its cost grows with k.
constexpr int32_t kMaxUnits = 8;

// Ceiling that forgives rounding: a quotient a few last bits above an integer is that integer. The
// result may be one too small, never too large, which keeps the bound a bound.
double Ceiling(double quotient) { return std::ceil(quotient * (1 - 1e-12)); }

struct Saving {
  double slots;  // more slots
  double units;  // fewer long units
};

class Refuter {
 public:
  Refuter(const Domain& domain, int32_t units)
      : load_(domain.load),
        slots_(domain.num_slots()),
        units_(units),
        room_(static_cast<double>(domain.num_gpus()) * (units - 1)) {}

  // True when no arrangement keeps every GPU at or below `most` tokens.
  bool Refutes(double most) {
    double slots = 0;
    double long_units = 0;
    savings_.clear();
    for (const double load : load_) {
      const double few = std::max(1.0, Ceiling(load / most));
      slots += few;
      if (load / few <= most / units_ * (1 + 1e-12)) continue;
      long_units += few;
      savings_.push_back({Ceiling(units_ * load / most) - few, few});
    }
    if (slots > slots_) return true;
    if (long_units <= room_) return false;
    std::sort(savings_.begin(), savings_.end(), [](const Saving& a, const Saving& b) {
      return a.slots * b.units < b.slots * a.units;
    });
    for (const Saving& saving : savings_) {
      const double part = std::min(1.0, (long_units - room_) / saving.units);
      slots += part * saving.slots;
      long_units -= part * saving.units;
      if (long_units <= room_) break;
    }
    return slots > slots_ * (1 + 1e-12);
  }

 private:
  const std::vector<double>& load_;
  double slots_;
  int32_t units_;
  double room_;
  std::vector<Saving> savings_;
};

// The least T for which `num_slots` slots are enough to keep every unit at or below T: each spare
// slot goes to the expert with most load per replica. An expert that already has ceil(w / T)
// replicas gets another only when every expert has, so the largest unit ends at T.
double LeastLargestUnit(const std::vector<double>& load, int32_t num_slots) {
  struct Replicated {
    double unit;
    double load;
    int32_t replicas;
  };
  const auto lighter = [](const Replicated& a, const Replicated& b) { return a.unit < b.unit; };
  std::vector<Replicated> heap;
  heap.reserve(load.size());
  for (const double tokens : load) heap.push_back({tokens, tokens, 1});
  std::make_heap(heap.begin(), heap.end(), lighter);
  for (auto spare = static_cast<int32_t>(load.size()); spare < num_slots; ++spare) {
    std::pop_heap(heap.begin(), heap.end(), lighter);
    Replicated& heaviest = heap.back();
    heaviest.unit = heaviest.load / ++heaviest.replicas;
    std::push_heap(heap.begin(), heap.end(), lighter);
  }
  return heap.front().unit;
}

}  // namespace

double DomainBound(const Domain& domain, bool any_split) {
  double total_speed = 0;
  for (const double speed : domain.speed) total_speed += speed;
  const double fastest = *std::max_element(domain.speed.begin(), domain.speed.end());
  double bound = domain.total_load() / total_speed;
  if (bound == 0) return 0;
  bound = std::max(bound, LeastLargestUnit(domain.load, domain.num_slots()) / fastest);
  const double heaviest = *std::max_element(domain.load.begin(), domain.load.end());
  const int32_t most_slots = *std::max_element(domain.slots.begin(), domain.slots.end());
  const int32_t most_units = any_split ? 1 : std::min(most_slots, kMaxUnits);
  for (int32_t units = 2; units <= most_units; ++units) {
    Refuter refuter(domain, units);
    if (!refuter.Refutes(bound * fastest)) continue;
    double refuted = bound * fastest;
    double open = std::max(refuted, heaviest) * units;
    if (refuter.Refutes(open)) continue;  // cannot happen; the bound stays proved without it
    for (int i = 0; i < kMaxBisections && open - refuted > kPrecision * refuted; ++i) {
      const double middle = (refuted + open) / 2;
      (refuter.Refutes(middle) ? refuted : open) = middle;
    }
    bound = refuted / fastest;
  }
  return bound;
}

}  // namespace eplb
