#include "placement/policies/incremental_policy.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/align.h"
#include "placement/policies/balanced_policy.h"
#include "placement/search/arrangement.h"
#include "placement/search/domain_bound.h"
#include "placement/search/homes.h"
#include "placement/search/relief.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// A layer closer to its bound than this is left alone.
constexpr double kLeastExcess = 0.02;
// A GPU load of T tokens is known to one part in sqrt(T), and the incumbent was made for a load
// known as badly. The squares of what GPUs are above the bound are this many of their own standard
// deviations above what that explains before they mean something.
constexpr double kSignificance = 6;
// How close to the bound a layer is brought, as a part of the excess that sets it moving.
constexpr double kGoal = 0.6;
// A layer that is not far off moves at most this part of its slots at a time: the hottest GPUs come
// first, so what is left out wins least.
constexpr double kMostOfSlots = 0.095;
constexpr double kFarOff = 0.3;
// Copying all slots of a layer must lower its largest GPU load by this part of the mean; where the
// layer is further off than kNear, by less in the same measure, for it will soon move again.
constexpr double kPriceOfAllSlots = 0.25;
constexpr double kNear = 0.06;

using Row = std::span<const int32_t>;
using Layout = std::vector<int32_t>;  // experts by slot of a domain

Row RowOf(const IndexMatrix& matrix, Eigen::Index row) {
  return {matrix.data() + row * matrix.cols(), static_cast<size_t>(matrix.cols())};
}

std::vector<double> LoadOf(const Load& load, Eigen::Index layer) {
  const RealMatrix tokens = load.ToDouble().row(layer);
  return {tokens.data(), tokens.data() + tokens.size()};
}

// A layer's usable GPUs as one domain; under a hierarchy experts have homes.
struct Frame {
  Domain domain;
  std::vector<int32_t> slots;  // of the domain, in the layer

  Layout Read(Row layer) const {
    Layout layout;
    for (const int32_t slot : slots) layout.push_back(layer[static_cast<size_t>(slot)]);
    return layout;
  }
};

Frame FrameOf(const Topology& topology, const GpuSpeeds& speeds, Hierarchy hierarchy) {
  Frame frame = {.domain = DomainOf(topology, speeds, 0, topology.num_gpus()), .slots = {}};
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (!speeds.Usable(GpuId{gpu})) continue;
    const int32_t first = topology.FirstSlotOf(GpuId{gpu}).value;
    const int32_t count = topology.SlotsOf(GpuId{gpu});
    if (hierarchy != Hierarchy::kNone) {
      frame.domain.home_of_gpu.push_back(topology.NodeOf(GpuId{gpu}).value);
    }
    for (int32_t slot = first; slot < first + count; ++slot) frame.slots.push_back(slot);
  }
  frame.domain.only_at_home = hierarchy == Hierarchy::kStrict;
  return frame;
}

// Scores layouts of one layer and keeps the best. The incumbent is offered first.
class Contest {
 public:
  // windows: loads to score on, each [E].
  Contest(const Domain& domain, std::vector<std::vector<double>> windows)
      : domain_(domain), windows_(std::move(windows)) {}

  // A score is the mean over the windows of largest load / mean load, plus the price of the copies.
  void Offer(Row layout, int32_t copies) {
    const double price = price_of_all_slots_ * copies / static_cast<double>(layout.size());
    const double peak = MeanPeak(layout);
    if (best_.empty()) {
      incumbent_peak_ = peak;
    } else if (peak + price >= best_score_ || peak > incumbent_peak_) {
      return;
    }
    best_.assign(layout.begin(), layout.end());
    best_score_ = peak + price;
  }

  // Copying all slots costs this part of the mean load from now on.
  void set_price(double price_of_all_slots) { price_of_all_slots_ = price_of_all_slots; }

  const Layout& best() const { return best_; }

 private:
  double MeanPeak(Row layout) const {
    double sum = 0;
    for (const std::vector<double>& window : windows_) {
      double total = 0;
      for (const double tokens : window) total += tokens;
      if (total <= 0) continue;
      sum += Peak(layout, window) * static_cast<double>(domain_.slots.size()) / total;
    }
    return sum / static_cast<double>(windows_.size());
  }

  double Peak(Row layout, const std::vector<double>& window) const {
    std::vector<int32_t> counts(window.size());
    for (const int32_t expert : layout) ++counts[static_cast<size_t>(expert)];
    double peak = 0;
    auto slot = layout.begin();
    for (size_t gpu = 0; gpu < domain_.slots.size(); ++gpu) {
      double tokens = 0;
      for (int32_t i = 0; i < domain_.slots[gpu]; ++i, ++slot) {
        tokens += window[static_cast<size_t>(*slot)] / counts[static_cast<size_t>(*slot)];
      }
      peak = std::max(peak, tokens / domain_.speed[gpu]);
    }
    return peak;
  }

  const Domain& domain_;
  std::vector<std::vector<double>> windows_;
  Layout best_;
  double best_score_ = 0;
  double price_of_all_slots_ = kPriceOfAllSlots;
  double incumbent_peak_ = 0;
};

// Fills empty slots, and gives every expert without a slot one, in place of the replica whose
// expert misses it least. False when that is not possible without a duplicate.
bool Mend(const Domain& domain, Layout& layout) {
  std::vector<int32_t> counts(domain.load.size());
  for (const int32_t expert : layout) {
    if (expert >= 0) ++counts[static_cast<size_t>(expert)];
  }
  const auto unit = [&](size_t expert, int32_t replicas) {
    return domain.load[expert] / std::max(replicas, 1);
  };
  const auto put = [&](size_t expert, bool only_empty) {
    size_t best = layout.size();
    double least = 0;
    size_t first = 0;
    for (const int32_t slots : domain.slots) {
      const auto begin = layout.begin() + static_cast<std::ptrdiff_t>(first);
      const bool held = std::count(begin, begin + slots, static_cast<int32_t>(expert)) > 0;
      for (size_t slot = first; !held && slot < first + static_cast<size_t>(slots); ++slot) {
        const bool empty = layout[slot] < 0;
        const auto other = static_cast<size_t>(std::max(layout[slot], 0));
        if (empty != only_empty || (!empty && counts[other] < 2)) continue;
        const double missed = empty ? 0 : unit(other, counts[other] - 1);
        if (best < layout.size() && missed >= least) continue;
        best = slot;
        least = missed;
      }
      first += static_cast<size_t>(slots);
    }
    if (best == layout.size()) return false;
    if (layout[best] >= 0) --counts[static_cast<size_t>(layout[best])];
    layout[best] = static_cast<int32_t>(expert);
    ++counts[expert];
    return true;
  };
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] == 0 && !put(expert, true) && !put(expert, false)) return false;
  }
  while (std::find(layout.begin(), layout.end(), -1) != layout.end()) {
    std::vector<size_t> order(counts.size());
    for (size_t expert = 0; expert < order.size(); ++expert) order[expert] = expert;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return unit(a, counts[a]) > unit(b, counts[b]); });
    if (std::none_of(order.begin(), order.end(), [&](size_t e) { return put(e, true); })) {
      return false;
    }
  }
  return true;
}

// More of the GPUs are more above the bound than sampling noise explains. (One GPU alone says
// little: the largest of many is always far above the mean.)
bool IsSignificant(const Arrangement& arrangement, double bound, double mean_tokens) {
  double squares = 0;
  double above = 0;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    const double excess = arrangement.load(gpu) / bound - 1;
    if (excess <= 0) continue;
    squares += excess * excess;
    ++above;
  }
  const double noise = 2 / mean_tokens;
  return squares > noise * (above + kSignificance * std::sqrt(2 * above));
}

// Relieves the incumbent step by step and offers what stands after each.
void OfferSteps(const Domain& domain, Row incumbent, int32_t budget, Contest& contest) {
  const double mean = domain.total_load() / static_cast<double>(domain.num_gpus());
  if (mean <= 0) return;
  Arrangement arrangement(domain);
  arrangement.Assign(incumbent);
  const double bound = DomainBound(domain);
  const double excess = arrangement.MaxLoad() / bound - 1;
  if (excess <= kLeastExcess || !IsSignificant(arrangement, bound, mean)) return;
  const double target = bound * (1 + kGoal * kLeastExcess);
  const double price = kPriceOfAllSlots * std::min(1.0, kNear / excess);
  contest.set_price(price);
  const double least_win = price * bound / arrangement.num_slots();
  const auto most =
      static_cast<int32_t>((excess > kFarOff ? 1 : kMostOfSlots) * arrangement.num_slots());
  Relief relief(arrangement, budget);
  for (int32_t step = 0; step < 2 * arrangement.num_slots(); ++step) {
    if (!relief.Step(target, least_win) && !relief.Chain(target, least_win) &&
        !relief.Walk(target, least_win)) {
      return;
    }
    if (relief.copies() > most) return;
    contest.Offer(arrangement.experts(), relief.copies());
  }
}

// Copies into all GPUs and the most into one, from one layout to another.
std::pair<int32_t, int32_t> CopiesBetween(const Domain& domain, Row from, Row to) {
  int32_t sum = 0;
  int32_t most = 0;
  size_t first = 0;
  for (const int32_t slots : domain.slots) {
    const Row had = from.subspan(first, static_cast<size_t>(slots));
    int32_t copies = 0;
    for (const int32_t expert : to.subspan(first, static_cast<size_t>(slots))) {
      copies += std::find(had.begin(), had.end(), expert) == had.end() ? 1 : 0;
    }
    sum += copies;
    most = std::max(most, copies);
    first += static_cast<size_t>(slots);
  }
  return {sum, most};
}

class IncrementalPolicy final : public Policy {
 public:
  explicit IncrementalPolicy(const IncrementalOptions& options) : options_(options) {}

  std::string_view name() const override { return "incremental"; }

  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    const Topology& topology = input.topology;
    EPLB_RETURN_IF_ERROR(CheckInput(input));
    const Placement previous =
        input.previous == nullptr ? Placement::Static(topology) : *input.previous;
    const GpuSpeeds speeds =
        input.speeds == nullptr ? GpuSpeeds::Equal(topology.num_gpus()) : *input.speeds;
    const Hierarchy hierarchy = options_.hierarchy.value_or(DefaultHierarchy(topology));
    EPLB_ASSIGN_OR_RETURN(
        const Placement balanced,
        MakeBalancedPolicy({.hierarchy = hierarchy,
                            .effort = options_.effort,
                            .allow_duplicates = options_.allow_duplicates})
            ->Solve({.load = input.load, .topology = topology, .speeds = &speeds}));
    EPLB_ASSIGN_OR_RETURN(const Placement aligned, Align(previous, balanced));
    Frame frame = FrameOf(topology, speeds, hierarchy);
    frame.domain.allow_duplicates = options_.allow_duplicates;
    IndexMatrix slots = aligned.physical_to_logical_map();
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      SetLayer(input, hierarchy, RowOf(previous.physical_to_logical_map(), layer), layer, frame);
      const Layout chosen = Choose(input, frame, layer, hierarchy,
                                   frame.Read(RowOf(previous.physical_to_logical_map(), layer)),
                                   frame.Read(RowOf(aligned.physical_to_logical_map(), layer)));
      for (size_t i = 0; i < chosen.size(); ++i) slots(layer, frame.slots[i]) = chosen[i];
    }
    EPLB_ASSIGN_OR_RETURN(const Placement next, Placement::FromSlots(topology, slots));
    EPLB_ASSIGN_OR_RETURN(Placement placement, Align(previous, next));
    if (hierarchy != Hierarchy::kSoft) return placement;
    return WithPrimariesAtHome(placement, hierarchy);
  }

 private:
  static absl::Status CheckInput(const PolicyInput& input) {
    const Topology& topology = input.topology;
    if (input.previous != nullptr) {
      EPLB_RETURN_IF_ERROR(
          CheckSameTopology("previous", input.previous->topology(), "next", topology));
    }
    const auto check = [&](const char* name, const Load& load) {
      if (load.num_layers() == topology.num_layers() &&
          load.num_experts() == topology.num_experts()) {
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(absl::StrCat(
          name, " has ", load.num_layers(), " layers x ", load.num_experts(),
          " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
    };
    EPLB_RETURN_IF_ERROR(check("load", input.load));
    for (const Load& window : input.recent) EPLB_RETURN_IF_ERROR(check("recent window", window));
    return absl::OkStatus();
  }

  // Loads and homes of a layer; no homes where the incumbent keeps none.
  static void SetLayer(const PolicyInput& input, Hierarchy hierarchy, Row incumbent, int32_t layer,
                       Frame& frame) {
    frame.domain.load = LoadOf(input.load, layer);
    frame.domain.home_of_expert.clear();
    if (hierarchy == Hierarchy::kNone) return;
    const auto homes = HomesOf(input.topology, hierarchy, incumbent);
    if (!homes.has_value()) return;
    const auto per_group =
        static_cast<size_t>(input.topology.num_experts() / input.topology.num_groups());
    for (const int32_t node : *homes) {
      frame.domain.home_of_expert.insert(frame.domain.home_of_expert.end(), per_group, node);
    }
  }

  Layout Choose(const PolicyInput& input, const Frame& frame, int32_t layer, Hierarchy hierarchy,
                Layout incumbent, const Layout& balanced) const {
    const Domain& domain = frame.domain;
    const Layout before = incumbent;
    const bool homeless = hierarchy != Hierarchy::kNone && domain.home_of_expert.empty();
    if (homeless || !Mend(domain, incumbent)) return balanced;
    std::vector<std::vector<double>> windows;
    for (const Load& window : input.recent) windows.push_back(LoadOf(window, layer));
    if (windows.empty()) windows.push_back(domain.load);
    Contest contest(domain, std::move(windows));
    contest.Offer(incumbent, 0);
    OfferSteps(domain, incumbent, options_.max_moves_per_gpu, contest);
    const auto [copies, most] = CopiesBetween(domain, before, balanced);
    if (most <= options_.max_moves_per_gpu) contest.Offer(balanced, copies);
    return contest.best();
  }

  IncrementalOptions options_;
};

}  // namespace

std::unique_ptr<Policy> MakeIncrementalPolicy(const IncrementalOptions& options) {
  return std::make_unique<IncrementalPolicy>(options);
}

}  // namespace eplb
