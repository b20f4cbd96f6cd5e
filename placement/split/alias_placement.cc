#include "placement/split/alias_placement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

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

namespace {

constexpr int kDigitBits = 8;
constexpr uint64_t kDigitMask = (1 << kDigitBits) - 1;

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// k: the whole experts that every GPU has room for beside a part of another.
int32_t NumWhole(const AliasDomain& domain) {
  return *std::min_element(domain.slots_of_gpu.begin(), domain.slots_of_gpu.end()) - 1;
}

// Slot by slot the experts in turn: neighbours on a GPU differ, and counts differ by at most one.
void Spread(std::span<const int32_t> experts, std::span<int32_t> slots) {
  for (size_t slot = 0, next = 0; slot < slots.size(); ++slot) {
    slots[slot] = experts[next];
    next = next + 1 == experts.size() ? 0 : next + 1;
  }
}

}  // namespace

bool AliasFits(int64_t num_experts, std::span<const int32_t> slots_of_gpu) {
  if (slots_of_gpu.empty()) return false;
  const auto [fewest, most] = std::minmax_element(slots_of_gpu.begin(), slots_of_gpu.end());
  const auto num_gpus = static_cast<int64_t>(slots_of_gpu.size());
  return num_experts <= (*fewest - 1) * num_gpus && *most <= num_experts;
}

// Least significant digit first: stable, and cheaper than comparisons, which a processor cannot
// predict. Digits in which all loads agree are skipped: counts below 2^16 cost two passes.
void AliasSolver::SortByLoad(const AliasDomain& domain) {
  keys_.resize(domain.experts.size());
  sorted_.resize(domain.experts.size());
  replicas_.resize(domain.loads.size());
  held_on_.resize(domain.loads.size());
  uint64_t any = 0;
  uint64_t all = ~uint64_t{0};
  for (size_t i = 0; i < keys_.size(); ++i) {
    const int32_t expert = domain.experts[i];
    const auto tokens = static_cast<uint64_t>(domain.loads[Index(expert)]);
    keys_[i] = {.tokens = tokens, .expert = expert};
    replicas_[Index(expert)] = 1;
    held_on_[Index(expert)] = -1;
    any |= tokens;
    all &= tokens;
  }
  const uint64_t varying = any & ~all;
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    if ((varying >> shift & kDigitMask) == 0) continue;
    std::array<uint32_t, kDigitMask + 1> place{};
    for (const Key& key : keys_) ++place[key.tokens >> shift & kDigitMask];
    uint32_t sum = 0;
    for (uint32_t& count : place) sum += std::exchange(count, sum);
    for (const Key& key : keys_) sorted_[place[key.tokens >> shift & kDigitMask]++] = key;
    keys_.swap(sorted_);
  }
}

void AliasSolver::MakeList(const AliasDomain& domain) {
  num_nodes_ = NumWhole(domain) * static_cast<int32_t>(domain.slots_of_gpu.size());
  const size_t num_zeros = Index(num_nodes_) - keys_.size();
  nodes_.resize(Index(num_nodes_) + 2);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    nodes_[i] = {.tokens = 0, .expert = -1, .before = at - 1, .after = at + 1};
    if (i <= num_zeros || i > Index(num_nodes_)) continue;
    const Key& key = keys_[i - 1 - num_zeros];
    nodes_[i].tokens = static_cast<int64_t>(key.tokens);
    nodes_[i].expert = key.expert;
  }
  around_ = (num_nodes_ + 1) / 2;
}

AliasSolver::Window AliasSolver::FindWindow(int32_t near, int32_t length, int64_t target) const {
  const int32_t end = num_nodes_ + 1;
  Window window{.first = near, .last = near, .tokens = nodes_[Index(near)].tokens};
  for (int32_t i = 1; i < length; ++i) {
    // Below `near` as far as it goes, the rest above.
    const int32_t before = nodes_[Index(window.first)].before;
    int32_t& edge = before != 0 ? window.first : window.last;
    edge = before != 0 ? before : nodes_[Index(window.last)].after;
    window.tokens += nodes_[Index(edge)].tokens;
  }
  while (window.tokens > target && nodes_[Index(window.first)].before != 0) {
    window.tokens -= nodes_[Index(window.last)].tokens;
    window.last = nodes_[Index(window.last)].before;
    window.first = nodes_[Index(window.first)].before;
    window.tokens += nodes_[Index(window.first)].tokens;
  }
  for (int32_t next = nodes_[Index(window.last)].after; next != end;
       next = nodes_[Index(next)].after) {
    const int64_t tokens = window.tokens - nodes_[Index(window.first)].tokens;
    if (nodes_[Index(next)].tokens > target - tokens) break;
    window.tokens = tokens + nodes_[Index(next)].tokens;
    window.first = nodes_[Index(window.first)].after;
    window.last = next;
  }
  return window;
}

size_t AliasSolver::FillGpu(const Window& window, int64_t target, std::span<int32_t> slots,
                            std::span<int64_t> quotas) {
  size_t used = 0;
  const int32_t before = nodes_[Index(window.first)].before;
  const int32_t after = nodes_[Index(window.last)].after;
  for (int32_t i = window.first; i != after; i = nodes_[Index(i)].after) {
    const Node& node = nodes_[Index(i)];
    if (node.expert < 0) continue;
    slots[used] = node.expert;
    quotas[used] = node.tokens;
    ++used;
  }
  nodes_[Index(before)].after = after;
  nodes_[Index(after)].before = before;
  around_ = after <= num_nodes_ ? after : before;
  const int64_t missing = target - window.tokens;
  if (after <= num_nodes_ && missing > 0) {
    Node& continued = nodes_[Index(after)];
    continued.tokens -= missing;
    ++replicas_[Index(continued.expert)];
    slots[used] = continued.expert;
    quotas[used] = missing;
    ++used;
  }
  return used;
}

bool AliasSolver::Lighter::operator()(const Replicated& a, const Replicated& b) const {
  if (a.tokens_per_replica != b.tokens_per_replica) {
    return a.tokens_per_replica < b.tokens_per_replica;
  }
  if (a.replicas != b.replicas) return a.replicas > b.replicas;
  return a.expert > b.expert;
}

// The experts with several replicas, and as many of the others as may be asked for, heaviest first:
// one for each left-over slot and those that the GPU in question has already.
void AliasSolver::FindCandidates(size_t num_leftovers, size_t most_slots) {
  size_t single = num_leftovers + most_slots;
  heap_.clear();
  for (auto key = keys_.rbegin(); key != keys_.rend(); ++key) {
    const int32_t replicas = replicas_[Index(key->expert)];
    if (replicas == 1 && single == 0) continue;
    if (replicas == 1) --single;
    const auto tokens = static_cast<double>(key->tokens);
    heap_.push_back({tokens / replicas, tokens, replicas, key->expert});
  }
  std::make_heap(heap_.begin(), heap_.end(), Lighter());
}

void AliasSolver::FillLeftovers(const AliasDomain& domain, std::span<int32_t> slots) {
  size_t num_leftovers = slots.size();
  for (const size_t used : used_) num_leftovers -= used;
  FindCandidates(num_leftovers,
                 Index(*std::max_element(domain.slots_of_gpu.begin(), domain.slots_of_gpu.end())));
  for (size_t gpu = 0, first = 0; gpu < used_.size(); ++gpu) {
    const std::span<int32_t> held = slots.subspan(first, Index(domain.slots_of_gpu[gpu]));
    first += held.size();
    if (used_[gpu] == held.size()) continue;
    const auto this_gpu = static_cast<int32_t>(gpu);
    for (const int32_t expert : held.first(used_[gpu])) held_on_[Index(expert)] = this_gpu;
    set_aside_.clear();
    for (size_t used = used_[gpu]; used < held.size();) {
      std::pop_heap(heap_.begin(), heap_.end(), Lighter());
      Replicated heaviest = heap_.back();
      heap_.pop_back();
      if (held_on_[Index(heaviest.expert)] != this_gpu) {
        held[used++] = heaviest.expert;
        ++heaviest.replicas;
        heaviest.tokens_per_replica = heaviest.tokens / heaviest.replicas;
      }
      set_aside_.push_back(heaviest);
    }
    for (const Replicated& replicated : set_aside_) {
      heap_.push_back(replicated);
      std::push_heap(heap_.begin(), heap_.end(), Lighter());
    }
  }
}

void AliasSolver::Solve(const AliasDomain& domain, std::span<int32_t> slots,
                        std::span<int64_t> quotas) {
  int64_t left = 0;
  for (const int32_t expert : domain.experts) left += domain.loads[Index(expert)];
  std::fill(quotas.begin(), quotas.end(), 0);
  if (left == 0) return Spread(domain.experts, slots);

  SortByLoad(domain);
  MakeList(domain);
  const size_t num_gpus = domain.slots_of_gpu.size();
  const int32_t num_whole = NumWhole(domain);
  used_.resize(num_gpus);
  for (size_t gpu = 0, first = 0; gpu < num_gpus; ++gpu) {
    const auto gpus_left = static_cast<int64_t>(num_gpus - gpu);
    const int64_t target = left / gpus_left + (left % gpus_left != 0 ? 1 : 0);
    const Window window = FindWindow(around_, num_whole, target);
    const size_t held = Index(domain.slots_of_gpu[gpu]);
    used_[gpu] = FillGpu(window, target, slots.subspan(first, held), quotas.subspan(first, held));
    for (const int64_t quota : quotas.subspan(first, used_[gpu])) left -= quota;
    first += held;
  }
  FillLeftovers(domain, slots);
}

}  // namespace eplb
