#include "placement/search/outlets.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace eplb {
namespace {

// Part by which an exchange of two owned experts must lower the sum of squared owner loads, each in
// parts of the GPU's mean. An expert with an outlet costs this once more.
constexpr double kLeastGain = 0.005;
// An outlet changes if another expert of its owner is heavier by this part.
constexpr double kLeastRise = 0.25;

// The slots of each GPU that hold outlets: the spare ones spread over the GPUs, as evenly as their
// own slots allow.
std::vector<int32_t> OutletsPerGpu(const Domain& domain) {
  const int32_t spare = domain.num_slots() - domain.num_experts();
  std::vector<int32_t> outlets(domain.slots.size(), 0);
  int32_t left = spare;
  while (left > 0) {
    const int32_t before = left;
    for (size_t gpu = 0; gpu < outlets.size() && left > 0; ++gpu) {
      if (outlets[gpu] + 1 >= domain.slots[gpu]) continue;
      ++outlets[gpu];
      --left;
    }
    if (left == before) return {};
  }
  return outlets;
}

// Layouts from scratch: rows of experts by GPU, first the owned ones.
class RingMaker {
 public:
  explicit RingMaker(const Domain& domain)
      : domain_(domain),
        outlets_(OutletsPerGpu(domain)),
        on_gpu_(domain.slots.size()),
        tokens_(domain.slots.size(), 0) {}

  std::optional<std::vector<int32_t>> Make(double most_of_mean) {
    if (outlets_.empty()) return std::nullopt;
    PlaceOwned();
    if (most_of_mean > 0) SpreadHeavy(most_of_mean);
    int32_t stride = 0;
    while (std::ranges::any_of(outlets_, [](int32_t left) { return left > 0; })) {
      stride = NextStride(stride);
      if (!CloseRing(stride)) return std::nullopt;
    }
    std::vector<int32_t> layout;
    for (const std::vector<int32_t>& experts : on_gpu_) {
      layout.insert(layout.end(), experts.begin(), experts.end());
    }
    return layout;
  }

 private:
  int32_t num_gpus() const { return domain_.num_gpus(); }
  double load(int32_t expert) const { return domain_.load[AsIndex(expert)]; }

  void PlaceOwned() {
    order_.resize(domain_.load.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, [this](int32_t a, int32_t b) { return load(a) > load(b); });
    owner_.assign(domain_.load.size(), -1);
    for (const int32_t expert : order_) {
      int32_t best = -1;
      double best_load = 0;
      for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) {
        const auto g = AsIndex(gpu);
        if (static_cast<int32_t>(on_gpu_[g].size()) >= domain_.slots[g] - outlets_[g]) continue;
        const double after = (tokens_[g] + load(expert)) / domain_.speed[g];
        if (best >= 0 && after >= best_load) continue;
        best = gpu;
        best_load = after;
      }
      on_gpu_[AsIndex(best)].push_back(expert);
      tokens_[AsIndex(best)] += load(expert);
      owner_[AsIndex(expert)] = best;
    }
  }

  // Gives outlets to experts that are too heavy for one GPU, on the GPUs that own least.
  void SpreadHeavy(double most_of_mean) {
    const double unit = most_of_mean * domain_.total_load() / domain_.total_speed();
    int32_t spare = std::accumulate(outlets_.begin(), outlets_.end(), 0);
    for (const int32_t expert : order_) {
      for (double rest = load(expert) - unit; rest > 0 && unit > 0 && spare > 0; rest -= unit) {
        const int32_t gpu = LightestWithOutlet(expert);
        if (gpu < 0) break;
        PutOutlet(gpu, expert);
        --spare;
      }
    }
  }

  int32_t LightestWithOutlet(int32_t expert) const {
    int32_t best = -1;
    for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) {
      const auto g = AsIndex(gpu);
      if (outlets_[g] == 0 || Holds(gpu, expert)) continue;
      const auto b = AsIndex(best);
      if (best >= 0 && tokens_[g] * domain_.speed[b] >= tokens_[b] * domain_.speed[g]) continue;
      best = gpu;
    }
    return best;
  }

  // A stride that visits all GPUs, about a quarter of them further, then rising.
  int32_t NextStride(int32_t stride) const {
    const int32_t count = num_gpus();
    if (count <= 2) return 1;
    int32_t next = stride == 0 ? count / 4 + 1 : stride % (count - 1) + 1;
    while (std::gcd(next, count) != 1) next = next % (count - 1) + 1;
    return next;
  }

  // Each GPU with outlets left takes the heaviest expert of the GPU `stride` further, or of the
  // next one if it holds all those experts.
  bool CloseRing(int32_t stride) {
    for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) {
      if (outlets_[AsIndex(gpu)] == 0) continue;
      int32_t expert = -1;
      for (int32_t i = 0; i < num_gpus() && expert < 0; ++i) {
        expert = HeaviestFor(gpu, (gpu + stride + i) % num_gpus());
      }
      if (expert < 0) return false;
      PutOutlet(gpu, expert);
    }
    return true;
  }

  int32_t HeaviestFor(int32_t gpu, int32_t owner) const {
    int32_t heaviest = -1;
    if (gpu == owner) return heaviest;
    for (const int32_t expert : on_gpu_[AsIndex(owner)]) {
      if (owner_[AsIndex(expert)] != owner || Holds(gpu, expert)) continue;
      if (heaviest < 0 || load(expert) > load(heaviest)) heaviest = expert;
    }
    return heaviest;
  }

  bool Holds(int32_t gpu, int32_t expert) const {
    const std::vector<int32_t>& experts = on_gpu_[AsIndex(gpu)];
    return std::ranges::find(experts, expert) != experts.end();
  }

  void PutOutlet(int32_t gpu, int32_t expert) {
    on_gpu_[AsIndex(gpu)].push_back(expert);
    --outlets_[AsIndex(gpu)];
  }

  const Domain& domain_;
  std::vector<int32_t> outlets_;  // [m], still to be placed
  std::vector<std::vector<int32_t>> on_gpu_;
  std::vector<double> tokens_;  // [m], tokens of owned experts
  std::vector<int32_t> order_;  // [n], experts by falling load
  std::vector<int32_t> owner_;  // [n]
};

}  // namespace

// Owners of experts, and the places of outlets.
class OutletSteps::State {
 public:
  explicit State(const Domain& domain) : domain_(domain), gpu_of_(domain.GpuOfSlot()) {
    first_.push_back(0);
    for (const int32_t slots : domain.slots) first_.push_back(first_.back() + slots);
    outlets_ = OutletsPerGpu(domain);
    owner_.assign(domain.load.size(), -1);
  }

  // False without owners.
  bool Read(std::span<const int32_t> layout) {
    layout_.assign(layout.begin(), layout.end());
    if (outlets_.empty()) return false;
    std::vector<std::vector<int32_t>> holders(domain_.load.size());
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      std::vector<int32_t>& gpus = holders[AsIndex(layout_[slot])];
      if (!gpus.empty() && gpus.back() == gpu_of_[slot]) return false;
      gpus.push_back(gpu_of_[slot]);
    }
    if (!AssignOwners(holders)) return false;
    FindTargets();
    FindOwnerLoads();
    return true;
  }

  // Makes the exchange that takes most from the sum of squared owner loads, if more than
  // `least_gain`.
  bool SwapBest(double least_gain) {
    if (total_load_ <= 0) return false;
    Exchange best{.gain = least_gain};
    const auto [emptiest, fullest] = Extremes();
    for (int32_t gpu = 0; gpu < domain_.num_gpus(); ++gpu) {
      FindBest(fullest, gpu, least_gain, best);
      FindBest(emptiest, gpu, least_gain, best);
    }
    if (best.gain <= least_gain) return false;
    SwapSlots(best.a, best.b);
    return true;
  }

  // Gives every owner's outlets the experts that need them most.
  void Repoint(double least_rise) {
    for (int32_t gpu = 0; gpu < domain_.num_gpus(); ++gpu) RepointOf(gpu, least_rise);
  }

  const std::vector<int32_t>& layout() const { return layout_; }

 private:
  double load(int32_t expert) const { return domain_.load[AsIndex(expert)]; }
  int32_t owner(int32_t expert) const { return owner_[AsIndex(expert)]; }

  bool Holds(int32_t gpu, int32_t expert) const {
    const auto begin = layout_.begin() + first_[AsIndex(gpu)];
    const auto end = layout_.begin() + first_[AsIndex(gpu) + 1];
    return std::find(begin, end, expert) != end;
  }

  // Matches experts to their holders, each of which owns as many as it has slots without outlets.
  bool AssignOwners(const std::vector<std::vector<int32_t>>& holders) {
    std::vector<int32_t> room;
    for (size_t gpu = 0; gpu < domain_.slots.size(); ++gpu) {
      room.push_back(domain_.slots[gpu] - outlets_[gpu]);
    }
    std::vector<std::vector<int32_t>> owned(domain_.slots.size());
    for (int32_t expert = 0; expert < domain_.num_experts(); ++expert) {
      if (!PlaceOwner(expert, holders, room, owned)) return false;
    }
    return true;
  }

  // Breadth first along experts that another holder could own.
  bool PlaceOwner(int32_t expert, const std::vector<std::vector<int32_t>>& holders,
                  std::vector<int32_t>& room, std::vector<std::vector<int32_t>>& owned) {
    std::vector<int32_t> reached_by(domain_.slots.size(), -1);  // the expert that would go there
    std::vector<int32_t> queue;
    const auto reach = [&](int32_t from) {
      for (const int32_t gpu : holders[AsIndex(from)]) {
        if (reached_by[AsIndex(gpu)] >= 0) continue;
        reached_by[AsIndex(gpu)] = from;
        queue.push_back(gpu);
      }
    };
    reach(expert);
    for (size_t i = 0; i < queue.size(); ++i) {
      int32_t gpu = queue[i];
      if (room[AsIndex(gpu)] == 0) {
        for (const int32_t other : owned[AsIndex(gpu)]) reach(other);
        continue;
      }
      --room[AsIndex(gpu)];
      while (true) {
        const int32_t moved = reached_by[AsIndex(gpu)];
        const int32_t before = owner(moved);
        owner_[AsIndex(moved)] = gpu;
        owned[AsIndex(gpu)].push_back(moved);
        if (moved == expert) return true;
        std::erase(owned[AsIndex(before)], moved);
        gpu = before;
      }
    }
    return false;
  }

  void FindTargets() {
    target_.assign(layout_.size(), -1);
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      if (owner(layout_[slot]) != gpu_of_[slot]) target_[slot] = owner(layout_[slot]);
    }
  }

  void FindOwnerLoads() {
    owner_load_.assign(domain_.slots.size(), 0);
    has_outlet_.assign(domain_.load.size(), false);
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      const int32_t expert = layout_[slot];
      if (target_[slot] < 0) {
        owner_load_[AsIndex(gpu_of_[slot])] += load(expert);
      } else {
        has_outlet_[AsIndex(expert)] = true;
      }
    }
    total_load_ = domain_.total_load();
    const double total_speed = domain_.total_speed();
    for (const double speed : domain_.speed) mean_.push_back(speed * total_load_ / total_speed);
  }

  std::pair<int32_t, int32_t> Extremes() const {
    int32_t emptiest = 0;
    int32_t fullest = 0;
    for (int32_t gpu = 1; gpu < domain_.num_gpus(); ++gpu) {
      if (FillOf(gpu) < FillOf(emptiest)) emptiest = gpu;
      if (FillOf(gpu) > FillOf(fullest)) fullest = gpu;
    }
    return {emptiest, fullest};
  }
  double FillOf(int32_t gpu) const { return owner_load_[AsIndex(gpu)] / mean_[AsIndex(gpu)]; }

  struct Exchange {
    double gain = 0;
    size_t a = 0;
    size_t b = 0;
  };

  // Looks for a better exchange between two GPUs.
  void FindBest(int32_t g, int32_t h, double price, Exchange& best) const {
    if (g == h) return;
    for (auto a = AsIndex(first_[AsIndex(g)]); a < AsIndex(first_[AsIndex(g) + 1]); ++a) {
      if (target_[a] >= 0) continue;
      for (auto b = AsIndex(first_[AsIndex(h)]); b < AsIndex(first_[AsIndex(h) + 1]); ++b) {
        if (target_[b] >= 0) continue;
        const double gain = GainOf(a, b, price);
        if (gain <= best.gain || Holds(h, layout_[a]) || Holds(g, layout_[b])) continue;
        best = {.gain = gain, .a = a, .b = b};
      }
    }
  }

  // Reduction of the sum of squared owner loads, in parts of a GPU's mean.
  double GainOf(size_t a, size_t b, double price) const {
    const auto g = AsIndex(gpu_of_[a]);
    const auto h = AsIndex(gpu_of_[b]);
    const double change = load(layout_[b]) - load(layout_[a]);
    const auto square = [this](size_t gpu, double tokens) {
      return tokens / mean_[gpu] * (tokens / mean_[gpu]);
    };
    const double before = square(g, owner_load_[g]) + square(h, owner_load_[h]);
    const double after = square(g, owner_load_[g] + change) + square(h, owner_load_[h] - change);
    const bool outlet = has_outlet_[AsIndex(layout_[a])] || has_outlet_[AsIndex(layout_[b])];
    return before - after - (outlet ? price : 0);
  }

  void SwapSlots(size_t a, size_t b) {
    const double change = load(layout_[b]) - load(layout_[a]);
    owner_load_[AsIndex(gpu_of_[a])] += change;
    owner_load_[AsIndex(gpu_of_[b])] -= change;
    std::swap(layout_[a], layout_[b]);
    owner_[AsIndex(layout_[a])] = gpu_of_[a];
    owner_[AsIndex(layout_[b])] = gpu_of_[b];
  }

  // Gives outlets in turn to the GPU's own expert with most load per replica. An outlet keeps its
  // expert unless the other one is heavier by `least_rise`.
  void RepointOf(int32_t gpu, double least_rise) {
    std::vector<size_t> outlets;
    for (size_t slot = 0; slot < target_.size(); ++slot) {
      if (target_[slot] == gpu) outlets.push_back(slot);
    }
    std::vector<int32_t> replicas(domain_.load.size(), 1);
    for (const size_t outlet : outlets) {
      const int32_t now = layout_[outlet];
      const int32_t most = HeaviestFor(gpu, outlet, replicas);
      const bool kept =
          owner(now) == gpu &&
          (most < 0 || UnitOf(most, replicas) <= (1 + least_rise) * UnitOf(now, replicas));
      if (!kept && most >= 0) layout_[outlet] = most;
      ++replicas[AsIndex(layout_[outlet])];
    }
  }

  double UnitOf(int32_t expert, const std::vector<int32_t>& replicas) const {
    return load(expert) / replicas[AsIndex(expert)];
  }

  // The heaviest expert that `gpu` owns and the outlet's GPU does not hold in another slot; -1:
  // none.
  int32_t HeaviestFor(int32_t gpu, size_t outlet, const std::vector<int32_t>& replicas) const {
    int32_t heaviest = -1;
    for (auto slot = AsIndex(first_[AsIndex(gpu)]); slot < AsIndex(first_[AsIndex(gpu) + 1]);
         ++slot) {
      const int32_t expert = layout_[slot];
      if (target_[slot] >= 0) continue;
      if (expert != layout_[outlet] && Holds(gpu_of_[outlet], expert)) continue;
      if (heaviest < 0 || UnitOf(expert, replicas) > UnitOf(heaviest, replicas)) heaviest = expert;
    }
    return heaviest;
  }

  const Domain& domain_;
  std::vector<int32_t> gpu_of_;   // [S]
  std::vector<int32_t> first_;    // [m + 1]
  std::vector<int32_t> outlets_;  // [m]
  std::vector<int32_t> layout_;   // [S]
  std::vector<int32_t> owner_;    // [n]
  std::vector<int32_t> target_;   // [S], the GPU that owned an outlet's expert; -1: no outlet
  std::vector<double> owner_load_;
  std::vector<bool> has_outlet_;  // [n]
  std::vector<double> mean_;      // [m], mean of the owner loads, by speed
  double total_load_ = 0;
};

bool AllowsOutletRing(const Domain& domain) {
  if (domain.num_gpus() < 2 || domain.num_slots() - domain.num_experts() < domain.num_gpus()) {
    return false;
  }
  return std::ranges::all_of(domain.slots, [&domain](int32_t slots) {
    return slots >= 2 && slots <= domain.num_experts();
  });
}

std::optional<std::vector<int32_t>> MakeOutletRing(const Domain& domain, double most_of_mean) {
  if (!AllowsOutletRing(domain)) return std::nullopt;
  return RingMaker(domain).Make(most_of_mean);
}

OutletSteps::OutletSteps(const Domain& domain) : state_(std::make_unique<State>(domain)) {}

OutletSteps::~OutletSteps() = default;

bool OutletSteps::Start(std::span<const int32_t> layout) { return state_->Read(layout); }

bool OutletSteps::Swap() { return state_->SwapBest(kLeastGain); }

std::vector<int32_t> OutletSteps::WithOutlets() const {
  State repointed = *state_;
  repointed.Repoint(kLeastRise);
  return repointed.layout();
}

}  // namespace eplb
