#include "placement/split/alias_placement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "placement/split/split_graph.h"
#include "placement/split/token_split.h"

namespace eplb {
namespace {

constexpr int64_t kAliasTokens = int64_t{1} << 61;

// Experts, rising, that may be placed on certain GPUs only: those of a layer, or of one node.
struct AliasDomain {
  std::vector<int32_t> experts;
  std::vector<int32_t> gpus;  // usable ones
  int32_t fewest_slots = 0;   // fewest slots of a GPU
  int32_t most_slots = 0;

  bool Fits() const {
    const auto num_experts = std::ssize(experts);
    return !gpus.empty() && most_slots <= num_experts &&
           num_experts <= (fewest_slots - 1) * std::ssize(gpus);
  }
};

// Places the domains of one layer, one after the other.
//
// Method: the alias method of Walker and Vose, for k = fewest slots - 1 whole experts a GPU instead
// of one. Pad the experts with zeros to k * G and sort them. Take the GPUs in turn, with t =
// ceil(tokens left / GPUs left). The k lightest experts left sum to at most t and the k heaviest to
// at least t. So there is a window A of k neighbours whose sum is at most t, while the next window,
// A - a + b, has more (or A is the last). The GPU takes A whole and t - sum(A) of b. The rest of b
// is between a and b, so it takes A's place in the order. Nothing is sorted again, and k experts
// for each GPU left remain. So every load ends at ceil(mean) or below in integers, and only b
// continues on a later GPU. The next window is within k + 1 slides: the k neighbours below the gap
// sum to at most sum(A), and the k above it to more than t.
class AliasSolver {
 public:
  // loads: [E]. slots: [S], the expert of each slot of the domain's GPUs, written; quotas: [S], the
  // tokens that it takes there, 0 before.
  AliasSolver(const Topology& topology, std::span<const int64_t> loads, std::span<int32_t> slots,
              std::span<int64_t> quotas)
      : topology_(topology), loads_(loads), slots_(slots), quotas_(quotas) {}

  void Solve(const AliasDomain& domain) {
    int64_t left = 0;
    for (const int32_t expert : domain.experts) left += loads_[AsIndex(expert)];
    if (left == 0) return Spread(domain);
    const auto whole = AsIndex(domain.fewest_slots - 1);
    Sort(domain, whole * domain.gpus.size() - domain.experts.size());
    used_.clear();
    replicas_.assign(loads_.size(), 1);
    size_t first = (rest_.size() - whole) / 2;
    for (size_t i = 0; i < domain.gpus.size(); ++i) {
      const auto gpus_left = static_cast<int64_t>(domain.gpus.size() - i);
      const int64_t target = left / gpus_left + (left % gpus_left != 0 ? 1 : 0);
      left -= Fill(domain.gpus[i], target, whole, first);
      first = std::min(first - std::min(first, whole / 2), std::max(rest_.size(), whole) - whole);
    }
    FillLeftovers(domain);
  }

 private:
  // An expert with tokens that are still to be placed, or a zero of the padding (expert -1).
  struct Rest {
    int64_t tokens;
    int32_t expert;
  };

  // The experts in turn: neighbours on a GPU differ, and counts differ by at most one.
  void Spread(const AliasDomain& domain) {
    size_t next = 0;
    for (const int32_t gpu : domain.gpus) {
      for (int32_t& slot : SlotsOf(gpu)) {
        slot = domain.experts[next];
        next = next + 1 == domain.experts.size() ? 0 : next + 1;
      }
    }
  }

  std::span<int32_t> SlotsOf(int32_t gpu) const {
    return slots_.subspan(AsIndex(topology_.FirstSlotOf(GpuId{gpu}).value),
                          AsIndex(topology_.SlotsOf(GpuId{gpu})));
  }

  // Sorts the experts, least significant byte of their tokens first. That is faster than
  // comparisons, which a processor cannot predict.
  void Sort(const AliasDomain& domain, size_t num_zeros) {
    by_load_.clear();
    int64_t any = 0;
    for (const int32_t expert : domain.experts) {
      by_load_.push_back({loads_[AsIndex(expert)], expert});
      any |= by_load_.back().tokens;
    }
    sorted_.resize(by_load_.size());
    for (int shift = 0; shift < 64 && any >> shift != 0; shift += 8) {
      std::array<size_t, 257> place{};
      for (const Rest& rest : by_load_) ++place[AsIndex(rest.tokens >> shift & 0xff) + 1];
      std::partial_sum(place.begin(), place.end(), place.begin());
      for (const Rest& rest : by_load_)
        sorted_[place[AsIndex(rest.tokens >> shift & 0xff)]++] = rest;
      by_load_.swap(sorted_);
    }
    rest_.assign(num_zeros, {0, -1});
    rest_.insert(rest_.end(), by_load_.begin(), by_load_.end());
  }

  // Gives a GPU the last window of `whole` neighbours with at most `target` tokens, found from the
  // window at `first` on, and the missing tokens of the next expert. Leaves `first` at the rest of
  // that expert. Returns the tokens placed.
  int64_t Fill(int32_t gpu, int64_t target, size_t whole, size_t& first) {
    int64_t sum = 0;
    for (size_t i = first; i < first + whole; ++i) sum += rest_[i].tokens;
    while (sum > target && first > 0) {
      --first;
      sum += rest_[first].tokens - rest_[first + whole].tokens;
    }
    while (first + whole < rest_.size() &&
           rest_[first + whole].tokens <= target - (sum - rest_[first].tokens)) {
      sum += rest_[first + whole].tokens - rest_[first].tokens;
      ++first;
    }
    const std::span<int32_t> slots = SlotsOf(gpu);
    const auto quotas = quotas_.subspan(AsIndex(topology_.FirstSlotOf(GpuId{gpu}).value));
    size_t used = 0;
    for (size_t i = first; i < first + whole; ++i) {
      if (rest_[i].expert < 0) continue;
      slots[used] = rest_[i].expert;
      quotas[used++] = rest_[i].tokens;
    }
    const int64_t missing = target - sum;
    if (first + whole < rest_.size() && missing > 0) {
      Rest& continued = rest_[first + whole];
      continued.tokens -= missing;
      ++replicas_[AsIndex(continued.expert)];
      slots[used] = continued.expert;
      quotas[used++] = missing;
      sum = target;
    }
    const auto begin = rest_.begin() + static_cast<std::ptrdiff_t>(first);
    rest_.erase(begin, begin + static_cast<std::ptrdiff_t>(whole));
    used_.push_back(used);
    return sum;
  }

  void FillLeftovers(const AliasDomain& domain) {
    for (size_t i = 0; i < domain.gpus.size(); ++i) {
      const std::span<int32_t> held = SlotsOf(domain.gpus[i]);
      for (size_t used = used_[i]; used < held.size(); ++used) {
        held[used] = HeaviestBeside(held.first(used));
        ++replicas_[AsIndex(held[used])];
      }
    }
  }

  // The expert with the most load per replica that is not among `held`, then with the fewest
  // replicas, then the first.
  int32_t HeaviestBeside(std::span<const int32_t> held) const {
    int32_t best = -1;
    double most = -1;
    for (auto heaviest = by_load_.rbegin(); heaviest != by_load_.rend(); ++heaviest) {
      const auto [tokens, expert] = *heaviest;
      if (static_cast<double>(tokens) < most) break;
      const int32_t replicas = replicas_[AsIndex(expert)];
      const double unit = static_cast<double>(tokens) / replicas;
      const bool better =
          unit > most ||
          (unit == most && (replicas < replicas_[AsIndex(best)] ||
                            (replicas == replicas_[AsIndex(best)] && expert < best)));
      if (!better || std::ranges::find(held, expert) != held.end()) continue;
      best = expert;
      most = unit;
    }
    return best;
  }

  const Topology& topology_;
  std::span<const int64_t> loads_;
  std::span<int32_t> slots_;
  std::span<int64_t> quotas_;
  std::vector<Rest> rest_;         // lightest first
  std::vector<Rest> by_load_;      // all experts, lightest first
  std::vector<Rest> sorted_;       // scratch of Sort
  std::vector<size_t> used_;       // slots of each GPU that take tokens
  std::vector<int32_t> replicas_;  // [E]
};

// The usable GPUs of each node, or of the whole topology as one domain.
std::vector<AliasDomain> DomainsOf(const Topology& topology, const GpuSpeeds& speeds,
                                   int32_t num_domains) {
  std::vector<AliasDomain> domains(AsIndex(num_domains));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (!speeds.Usable(GpuId{gpu})) continue;
    AliasDomain& domain = domains[AsIndex(gpu / (topology.num_gpus() / num_domains))];
    const int32_t slots = topology.SlotsOf(GpuId{gpu});
    domain.fewest_slots = domain.gpus.empty() ? slots : std::min(domain.fewest_slots, slots);
    domain.most_slots = std::max(domain.most_slots, slots);
    domain.gpus.push_back(gpu);
  }
  return domains;
}

// quota / load of each slot's expert, equal shares for an expert without load.
void WriteShares(std::span<const int64_t> loads, std::span<const int32_t> slots,
                 std::span<const int64_t> quotas, std::span<double> shares) {
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] < 0) continue;
    const int64_t load = loads[AsIndex(slots[slot])];
    shares[slot] = load > 0 ? static_cast<double>(quotas[slot]) / static_cast<double>(load)
                            : 1.0 / static_cast<double>(std::ranges::count(slots, slots[slot]));
  }
}

}  // namespace

absl::StatusOr<std::optional<EvenPlacement>> PlaceEvenly(const Load& load, const Topology& topology,
                                                         const GpuSpeeds& speeds,
                                                         const IndexMatrix* node_of_group) {
  EPLB_RETURN_IF_ERROR(CheckLoadFits(load, topology));
  if (std::ranges::max(SplitSpeeds(speeds.speeds())) > 1) return std::nullopt;  // some are slower
  std::vector<AliasDomain> domains =
      DomainsOf(topology, speeds, node_of_group == nullptr ? 1 : topology.num_nodes());
  const int32_t per_group = topology.num_experts() / topology.num_groups();
  const auto num_slots = AsIndex(topology.num_slots());
  const RealMatrix tokens = load.ToDouble();
  IndexMatrix slots = IndexMatrix::Constant(topology.num_layers(), topology.num_slots(), -1);
  RealMatrix shares = RealMatrix::Zero(topology.num_layers(), topology.num_slots());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (AliasDomain& domain : domains) domain.experts.clear();
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const int32_t at = node_of_group == nullptr ? 0 : (*node_of_group)(layer, expert / per_group);
      domains[AsIndex(at)].experts.push_back(expert);
    }
    const std::vector<int64_t> loads =
        ScaledTokens({&tokens(layer, 0), AsIndex(topology.num_experts())}, kAliasTokens);
    std::vector<int64_t> quotas(num_slots);
    const std::span<int32_t> row(&slots(layer, 0), num_slots);
    AliasSolver solver(topology, loads, row, quotas);
    for (const AliasDomain& domain : domains) {
      if (!domain.Fits()) return std::nullopt;
      solver.Solve(domain);
    }
    WriteShares(loads, row, quotas, {&shares(layer, 0), num_slots});
  }
  EPLB_ASSIGN_OR_RETURN(Placement placement, Placement::FromSlots(topology, slots));
  return EvenPlacement{std::move(placement), std::move(shares)};
}

}  // namespace eplb
