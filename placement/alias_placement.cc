#include "placement/alias_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/alias_domain.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// Estimates become integers whose sum over a layer is about 2^61, so that rounding up cannot reach
// 2^63.
constexpr int kSumBits = 61;
// ldexp(1, +-1000) is neither infinite nor denormal.
constexpr int kMaxExponent = 1000;

// Experts node by node: those of node n are experts[first[n]] .. experts[first[n + 1] - 1].
struct NodeExperts {
  std::vector<int32_t> experts;
  std::vector<size_t> first;

  std::span<const int32_t> Of(int32_t node) const {
    const auto n = static_cast<size_t>(node);
    return {&experts[first[n]], first[n + 1] - first[n]};
  }
};

// The usable GPUs of a node, or of the whole.
struct DomainGpus {
  std::vector<int32_t> slots;       // of each
  std::vector<int32_t> first_slot;  // of each, in the layer
  size_t num_slots = 0;
};

std::vector<DomainGpus> UsableGpus(const Topology& topology, const GpuSpeeds* speeds,
                                   int32_t num_domains) {
  std::vector<DomainGpus> domains(static_cast<size_t>(num_domains));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (speeds != nullptr && !speeds->Usable(GpuId{gpu})) continue;
    DomainGpus& domain = domains[static_cast<size_t>(gpu / (topology.num_gpus() / num_domains))];
    domain.slots.push_back(topology.SlotsOf(GpuId{gpu}));
    domain.first_slot.push_back(topology.FirstSlotOf(GpuId{gpu}).value);
    domain.num_slots += static_cast<size_t>(domain.slots.back());
  }
  return domains;
}

// The usable ones.
bool EquallyFast(const Topology& topology, const GpuSpeeds* speeds) {
  if (speeds == nullptr) return true;
  if (speeds->num_gpus() != topology.num_gpus()) return false;
  const double fastest = *std::max_element(speeds->speeds().begin(), speeds->speeds().end());
  return std::all_of(speeds->speeds().begin(), speeds->speeds().end(),
                     [&](double speed) { return speed == 0 || speed == fastest; });
}

bool HasNodeForEachGroup(const Topology& topology,
                         const Eigen::Ref<const IndexMatrix>& node_of_group) {
  return node_of_group.rows() == topology.num_layers() &&
         node_of_group.cols() == topology.num_groups() &&
         topology.num_experts() % topology.num_groups() == 0 && node_of_group.minCoeff() >= 0 &&
         node_of_group.maxCoeff() < topology.num_nodes();
}

// REQUIRES: HasNodeForEachGroup.
void SortByNode(const Topology& topology, const Eigen::Ref<const IndexMatrix>& node_of_group,
                int32_t layer, NodeExperts& result) {
  const int32_t group_size = topology.num_experts() / topology.num_groups();
  result.experts.clear();
  result.first.assign(1, 0);
  for (int32_t node = 0; node < topology.num_nodes(); ++node) {
    for (int32_t group = 0; group < topology.num_groups(); ++group) {
      if (node_of_group(layer, group) != node) continue;
      for (int32_t i = 0; i < group_size; ++i) result.experts.push_back(group * group_size + i);
    }
    result.first.push_back(result.experts.size());
  }
}

LoadMatrix ToIntegers(const RealMatrix& estimates) {
  LoadMatrix integers(estimates.rows(), estimates.cols());
  for (Eigen::Index layer = 0; layer < estimates.rows(); ++layer) {
    // By powers of two, which are exact: first the largest cell to about 1, so that the sum is
    // finite, then the sum to 2^61.
    int exponent = 0;
    (void)std::frexp(estimates.row(layer).maxCoeff(), &exponent);
    const double first = std::ldexp(1.0, std::clamp(-exponent, -kMaxExponent, kMaxExponent));
    (void)std::frexp((estimates.row(layer) * first).sum(), &exponent);
    const double second = std::ldexp(1.0, kSumBits - exponent);
    for (Eigen::Index expert = 0; expert < estimates.cols(); ++expert) {
      integers(layer, expert) = std::llround(estimates(layer, expert) * first * second);
    }
  }
  return integers;
}

// quota / load, and equal shares where there is no load.
void WriteShares(const Placement& placement, int32_t layer, std::span<const int64_t> loads,
                 std::span<const int64_t> quotas, std::span<double> shares) {
  const auto experts = placement.physical_to_logical_map().row(layer);
  for (size_t slot = 0; slot < shares.size(); ++slot) {
    const int32_t expert = experts(static_cast<Eigen::Index>(slot));
    if (expert < 0) continue;
    const int64_t tokens = loads[static_cast<size_t>(expert)];
    shares[slot] = tokens > 0 ? static_cast<double>(quotas[slot]) / static_cast<double>(tokens)
                              : 1.0 / placement.logical_replica_count()(layer, expert);
  }
}

// Solves a domain and writes what its GPUs hold to their slots of the layer.
class DomainWriter {
 public:
  void Solve(const AliasDomain& problem, const DomainGpus& gpus, std::span<int32_t> slots,
             std::span<int64_t> quotas) {
    slots_.resize(gpus.num_slots);
    quotas_.resize(gpus.num_slots);
    solver_.Solve(problem, slots_, quotas_);
    std::ptrdiff_t from = 0;
    for (size_t gpu = 0; gpu < gpus.slots.size(); ++gpu) {
      std::copy_n(slots_.begin() + from, gpus.slots[gpu], slots.begin() + gpus.first_slot[gpu]);
      std::copy_n(quotas_.begin() + from, gpus.slots[gpu], quotas.begin() + gpus.first_slot[gpu]);
      from += gpus.slots[gpu];
    }
  }

 private:
  AliasSolver solver_;
  std::vector<int32_t> slots_;
  std::vector<int64_t> quotas_;
};

// node_of_group: null for one domain of all GPUs.
absl::StatusOr<SplitPlacement> Solve(const Load& load, const Topology& topology,
                                     const Eigen::Ref<const IndexMatrix>* node_of_group,
                                     const GpuSpeeds* speeds) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  const auto num_slots = static_cast<size_t>(topology.num_slots());
  const auto num_experts = static_cast<size_t>(topology.num_experts());
  const int32_t num_domains = node_of_group == nullptr ? 1 : topology.num_nodes();
  const std::vector<DomainGpus> gpus = UsableGpus(topology, speeds, num_domains);
  NodeExperts experts{.experts = std::vector<int32_t>(num_experts), .first = {0, num_experts}};
  std::iota(experts.experts.begin(), experts.experts.end(), 0);

  IndexMatrix slots = IndexMatrix::Constant(topology.num_layers(), topology.num_slots(), -1);
  LoadMatrix quotas = LoadMatrix::Zero(topology.num_layers(), topology.num_slots());
  const LoadMatrix integers = load.is_counts() ? LoadMatrix() : ToIntegers(load.ToDouble());
  const LoadMatrix& loads = load.is_counts() ? load.counts() : integers;
  DomainWriter writer;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    if (node_of_group != nullptr) SortByNode(topology, *node_of_group, layer, experts);
    const std::span<int32_t> layer_slots(&slots(layer, 0), num_slots);
    const std::span<int64_t> layer_quotas(&quotas(layer, 0), num_slots);
    for (int32_t domain = 0; domain < num_domains; ++domain) {
      const DomainGpus& of_domain = gpus[static_cast<size_t>(domain)];
      writer.Solve({.experts = experts.Of(domain),
                    .loads = {&loads(layer, 0), num_experts},
                    .slots_of_gpu = of_domain.slots},
                   of_domain, layer_slots, layer_quotas);
    }
  }

  EPLB_ASSIGN_OR_RETURN(Placement placement, Placement::FromSlots(topology, slots));
  RealMatrix shares = RealMatrix::Zero(topology.num_layers(), topology.num_slots());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    WriteShares(placement, layer, {&loads(layer, 0), num_experts}, {&quotas(layer, 0), num_slots},
                {&shares(layer, 0), num_slots});
  }
  if (!load.is_counts()) quotas.resize(0, 0);
  return SplitPlacement{std::move(placement), std::move(shares), std::move(quotas)};
}

}  // namespace

bool AliasApplies(const Topology& topology, const GpuSpeeds* speeds) {
  return EquallyFast(topology, speeds) &&
         AliasFits(topology.num_experts(), UsableGpus(topology, speeds, 1).front().slots);
}

bool AliasApplies(const Topology& topology, const Eigen::Ref<const IndexMatrix>& node_of_group,
                  const GpuSpeeds* speeds) {
  if (!EquallyFast(topology, speeds) || !HasNodeForEachGroup(topology, node_of_group)) return false;
  const std::vector<DomainGpus> gpus = UsableGpus(topology, speeds, topology.num_nodes());
  NodeExperts experts;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    SortByNode(topology, node_of_group, layer, experts);
    for (int32_t node = 0; node < topology.num_nodes(); ++node) {
      const auto num_experts = static_cast<int64_t>(experts.Of(node).size());
      if (!AliasFits(num_experts, gpus[static_cast<size_t>(node)].slots)) return false;
    }
  }
  return true;
}

absl::StatusOr<SplitPlacement> SolveAlias(const Load& load, const Topology& topology,
                                          const GpuSpeeds* speeds) {
  if (!AliasApplies(topology, speeds)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an exactly even split needs usable GPUs of one speed, of which none has more slots than "
        "there are experts and that could hold every expert with a slot to spare on each; there "
        "are ",
        topology.num_slots(), " slots, ", topology.num_experts(), " experts, ", topology.num_gpus(),
        " GPUs"));
  }
  return Solve(load, topology, nullptr, speeds);
}

absl::StatusOr<SplitPlacement> SolveAlias(const Load& load, const Topology& topology,
                                          const Eigen::Ref<const IndexMatrix>& node_of_group,
                                          const GpuSpeeds* speeds) {
  if (!AliasApplies(topology, node_of_group, speeds)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an exactly even split inside nodes needs a node for each of ", topology.num_groups(),
        " equal expert groups, usable GPUs of one speed, and for every node room for its experts "
        "with a slot to spare on each GPU; there are ",
        topology.num_slots(), " slots, ", topology.num_experts(), " experts, ", topology.num_gpus(),
        " GPUs, ", topology.num_nodes(), " nodes"));
  }
  return Solve(load, topology, &node_of_group, speeds);
}

}  // namespace eplb
