// The echo of one layer of one batch, for the CPU and for a warp of the GPU: replicas of the
// batch's hot experts in spare slots, for this batch alone.
//
// Problem: every home slot has tokens, and GPUs have spare slots. A replica of an expert in a spare
// slot of another GPU of the same NVLink domain takes a part of a home slot's tokens. Find few
// replicas with no GPU above a threshold T; homes never move.
// Theory: tokens never leave their domain, so no echo is below ceil(tokens / usable GPUs) of any
// domain: the bound. With spare slots enough the bound is reached; the higher T is, the fewer
// replicas are needed. To need the fewest is a packing problem, and hard.
// Method: the goal is the mean of the fullest domain plus a tolerance. For a threshold, GPUs give
// up what they have above it, those with least excess first, from their heaviest slot first, to the
// GPU with the least room that takes all of it, else to the one with the most room. A replica ends
// an excess, a home slot or a room, so there are few. A small excess fits exactly into some room
// while there are many; a large one fills several anyhow: the opposite order needs a tenth more
// replicas at 64 GPUs. Where the goal is out of reach, bisection finds a threshold that is not, to
// 1/1024 of the bound.
// All numbers are integers and every choice has a total order: CPU and GPU, any machine and any
// number of threads give the same echo.
#ifndef EPLB_PLACEMENT_ECHO_ECHO_BODY_H_
#define EPLB_PLACEMENT_ECHO_ECHO_BODY_H_

#include <cstdint>

#include "base/host_device.h"

namespace eplb {

inline constexpr int64_t kMaxEchoTokens = int64_t{1} << 36;      // of a layer
inline constexpr int64_t kEchoToleranceUnit = int64_t{1} << 20;  // a tolerance of 1, the largest

// The homes of one layer: views into memory of the CPU or of the GPU. Neighbouring GPUs are a
// domain. GPU g has the spare slots g * spares_per_gpu up to before (g + 1) * spares_per_gpu.
struct EchoLayer {
  int32_t num_gpus = 0;
  int32_t gpus_per_domain = 0;  // num_gpus is a multiple
  int32_t spares_per_gpu = 0;
  const int32_t* first_slot = nullptr;   // [G + 1] into the home slots; each GPU has one at least
  const int32_t* slot_expert = nullptr;  // [S], -1 in all slots of an unusable GPU
};

// What an echo is.
struct EchoTokens {
  int64_t* home = nullptr;    // [S], in: tokens of the slot without echo; out: what it keeps
  int32_t* source = nullptr;  // [X], out: the home slot whose expert the spare slot holds, -1: none
  int64_t* spare = nullptr;   // [X], out: tokens of the spare slot; X = G * spares_per_gpu
};

// Scratch memory of one layer.
struct EchoScratch {
  int64_t* load = nullptr;       // [G]
  int64_t* order = nullptr;      // [G], domain by domain, by rising load
  int64_t* receivers = nullptr;  // [G], domain by domain, by rising room
  int64_t* given = nullptr;      // [S]
  int32_t* num_used = nullptr;   // [G], spare slots
};

struct EchoPeak {
  int64_t before = 0;  // tokens of the fullest GPU without echo
  int64_t peak = 0;    // with it
  int64_t bound = 0;   // no echo has a lower peak
  int32_t num_replicas = 0;
  int32_t bound_domain = 0;  // whose tokens give the bound

  friend bool operator==(const EchoPeak&, const EchoPeak&) = default;
};

// What the slot with this replica rank takes of an expert's tokens before the echo.
EPLB_HOST_DEVICE inline int64_t EqualEchoShare(int64_t tokens, int32_t num_replicas,
                                               int32_t replica_rank) {
  if (num_replicas == 1) return tokens;  // most are, and a division takes long
  return tokens / num_replicas + (replica_rank < tokens % num_replicas ? 1 : 0);
}

// Who works on a layer: one thread, or the lanes of a warp (cuda/echo.cu). ForEach calls with every
// index once and returns when all have; Sum and Max give every member the same result.
struct EchoThread {
  static constexpr bool kIsOne = true;
  template <class Work>
  EPLB_HOST_DEVICE void ForEach(int32_t count, const Work& work) const {
    for (int32_t i = 0; i < count; ++i) work(i);
  }
  EPLB_HOST_DEVICE int64_t Sum(int64_t value) const { return value; }
  EPLB_HOST_DEVICE int64_t Max(int64_t value) const { return value; }
};

// Solves one layer. The sum of its tokens is at most kMaxEchoTokens, each is >= 0.
template <class Team>
class EchoBody {
 public:
  EPLB_HOST_DEVICE EchoBody(const EchoLayer& layer, const EchoTokens& tokens,
                            const EchoScratch& scratch, const Team& team)
      : layer_(layer), tokens_(tokens), scratch_(scratch), team_(team) {}

  // tolerance: above the mean of the fullest domain, in 1 / kEchoToleranceUnit of it.
  EPLB_HOST_DEVICE EchoPeak Solve(int64_t tolerance) {
    EchoPeak peak = AddLoads(tolerance);
    SortDomains();
    if (peak.before <= goal_) {
      Clear();
    } else if (!Fits(goal_)) {
      Bisect(peak);
    }
    Measure(peak);
    return peak;
  }

 private:
  static constexpr int32_t kIndexBits = 20;  // of a GPU or a slot of it, below a number of tokens
  static constexpr int64_t kIndexMask = (int64_t{1} << kIndexBits) - 1;
  static constexpr int64_t kResolution = 1024;

  // The receivers of one domain, by rising room and, among equals, rising GPU.
  struct Receivers {
    int64_t* keys;
    int32_t count;
  };

  EPLB_HOST_DEVICE static int64_t KeyOf(int64_t tokens, int64_t index) {
    return (tokens << kIndexBits) | index;
  }
  EPLB_HOST_DEVICE static int64_t TokensOf(int64_t key) { return key >> kIndexBits; }
  EPLB_HOST_DEVICE static int32_t IndexOf(int64_t key) {
    return static_cast<int32_t>(key & kIndexMask);
  }
  EPLB_HOST_DEVICE static int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
  EPLB_HOST_DEVICE static int64_t Larger(int64_t a, int64_t b) { return a < b ? b : a; }

  EPLB_HOST_DEVICE int32_t num_domains() const { return layer_.num_gpus / layer_.gpus_per_domain; }
  EPLB_HOST_DEVICE int32_t num_slots() const { return layer_.first_slot[layer_.num_gpus]; }
  EPLB_HOST_DEVICE int32_t num_spares() const { return layer_.num_gpus * layer_.spares_per_gpu; }
  EPLB_HOST_DEVICE bool IsUsable(int32_t gpu) const {
    return layer_.slot_expert[layer_.first_slot[gpu]] >= 0;
  }

  // Loads of GPUs, the bound, and the goal.
  EPLB_HOST_DEVICE EchoPeak AddLoads(int64_t tolerance) {
    int64_t most = 0;
    team_.ForEach(num_slots(), [this](int32_t i) { scratch_.given[i] = tokens_.home[i]; });
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      int64_t load = 0;
      for (int32_t slot = layer_.first_slot[gpu]; slot < layer_.first_slot[gpu + 1]; ++slot) {
        load += scratch_.given[slot];
      }
      scratch_.load[gpu] = load;
      most = Larger(most, load);
    });
    // Of the domains with the largest bound the first, of the goals the largest.
    int64_t bound = -1;
    int64_t goal = 0;
    team_.ForEach(num_domains(), [&](int32_t domain) {
      const int32_t first = domain * layer_.gpus_per_domain;
      int64_t usable = 0;
      int64_t sum = 0;
      for (int32_t gpu = first; gpu < first + layer_.gpus_per_domain; ++gpu) {
        usable += IsUsable(gpu) ? 1 : 0;
        sum += scratch_.load[gpu];
      }
      if (usable == 0) return;
      bound = Larger(bound, KeyOf((sum + usable - 1) / usable, kIndexMask - domain));
      goal = Larger(goal, sum * (kEchoToleranceUnit + tolerance) / (kEchoToleranceUnit * usable));
    });
    bound = team_.Max(bound);
    goal_ = Larger(team_.Max(goal), TokensOf(bound));
    return {.before = team_.Max(most),
            .bound = TokensOf(bound),
            .bound_domain = static_cast<int32_t>(kIndexMask) - IndexOf(bound)};
  }

  // GPUs of each domain by rising load; among equals the higher number first.
  EPLB_HOST_DEVICE void SortDomains() {
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) {
      scratch_.receivers[gpu] = KeyOf(scratch_.load[gpu], kIndexMask - gpu);
      if constexpr (Team::kIsOne) scratch_.order[gpu] = scratch_.receivers[gpu];
    });
    if constexpr (Team::kIsOne) {
      for (int32_t first = 0; first < layer_.num_gpus; first += layer_.gpus_per_domain) {
        ShellSort(scratch_.order + first, layer_.gpus_per_domain);
      }
    } else {  // each finds its own place: keys differ
      team_.ForEach(layer_.num_gpus, [this](int32_t gpu) {
        const int32_t first = gpu / layer_.gpus_per_domain * layer_.gpus_per_domain;
        const int64_t key = scratch_.receivers[gpu];
        int32_t place = first;
        for (int32_t i = 0; i < layer_.gpus_per_domain; ++i) {
          if (scratch_.receivers[first + i] < key) ++place;
        }
        scratch_.order[place] = key;
      });
    }
  }

  EPLB_HOST_DEVICE static void ShellSort(int64_t* keys, int32_t count) {
    int32_t gap = 1;
    while (gap < count / 3) gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
      for (int32_t i = gap; i < count; ++i) {
        const int64_t key = keys[i];
        int32_t at = i;
        for (; at >= gap && keys[at - gap] > key; at -= gap) keys[at] = keys[at - gap];
        keys[at] = key;
      }
    }
  }

  EPLB_HOST_DEVICE void Clear() {
    team_.ForEach(num_slots(), [this](int32_t slot) { tokens_.home[slot] = scratch_.given[slot]; });
    team_.ForEach(num_spares(), [this](int32_t spare) {
      tokens_.source[spare] = -1;
      tokens_.spare[spare] = 0;
    });
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) { scratch_.num_used[gpu] = 0; });
  }

  // Leaves an echo with no GPU above the threshold; false when this rule finds none.
  EPLB_HOST_DEVICE bool Fits(int64_t threshold) {
    Clear();
    int64_t num_failed = 0;
    team_.ForEach(num_domains(), [&](int32_t domain) {
      if (!SolveDomain(domain, threshold)) ++num_failed;
    });
    return team_.Sum(num_failed) == 0;
  }

  // REQUIRES: the goal does not fit. The peak without echo fits, without a replica.
  EPLB_HOST_DEVICE void Bisect(const EchoPeak& peak) {
    int64_t below = goal_;
    int64_t enough = peak.before;
    const int64_t resolution = Larger(1, peak.bound / kResolution);
    bool last_fits = false;
    while (enough - below > resolution) {
      const int64_t middle = below + (enough - below) / 2;
      last_fits = Fits(middle);
      (last_fits ? enough : below) = middle;
    }
    if (!last_fits) (void)Fits(enough);
  }

  EPLB_HOST_DEVICE bool SolveDomain(int32_t domain, int64_t threshold) {
    const int32_t first = domain * layer_.gpus_per_domain;
    const int64_t* const order = scratch_.order + first;
    int32_t at = layer_.gpus_per_domain;
    while (at > 0 && TokensOf(order[at - 1]) >= threshold) --at;
    Receivers receivers{.keys = scratch_.receivers + first, .count = 0};
    for (int32_t i = at - 1; i >= 0; --i) {
      const auto gpu = static_cast<int32_t>(kIndexMask) - IndexOf(order[i]);
      if (layer_.spares_per_gpu == 0 || !IsUsable(gpu)) continue;
      receivers.keys[receivers.count++] = KeyOf(threshold - TokensOf(order[i]), gpu);
    }
    for (int32_t i = at; i < layer_.gpus_per_domain; ++i) {
      const int64_t excess = TokensOf(order[i]) - threshold;
      const auto gpu = static_cast<int32_t>(kIndexMask) - IndexOf(order[i]);
      if (!GiveUp(gpu, excess, receivers)) return false;
    }
    return true;
  }

  // Gives `excess` tokens of the GPU to receivers, from its heaviest slot first.
  EPLB_HOST_DEVICE bool GiveUp(int32_t gpu, int64_t excess, Receivers& receivers) {
    int64_t above = INT64_MAX;
    while (excess > 0) {
      int64_t heaviest = -1;
      for (int32_t slot = layer_.first_slot[gpu]; slot < layer_.first_slot[gpu + 1]; ++slot) {
        const int64_t key =
            KeyOf(scratch_.given[slot], kIndexMask - (slot - layer_.first_slot[gpu]));
        if (key < above) heaviest = Larger(heaviest, key);
      }
      if (heaviest < 0 || TokensOf(heaviest) == 0) return false;
      above = heaviest;
      const int32_t slot =
          layer_.first_slot[gpu] + static_cast<int32_t>(kIndexMask) - IndexOf(heaviest);
      while (excess > 0 && tokens_.home[slot] > 0) {
        const int64_t moved = MakeReplica(slot, Smaller(excess, tokens_.home[slot]), receivers);
        if (moved == 0) break;  // its expert is on every receiver
        excess -= moved;
      }
    }
    return true;
  }

  // A replica that takes up to `wanted` tokens of the home slot; returns how many.
  EPLB_HOST_DEVICE int64_t MakeReplica(int32_t slot, int64_t wanted, Receivers& receivers) {
    const int32_t at = FindReceiver(layer_.slot_expert[slot], wanted, receivers);
    if (at < 0) return 0;
    const int64_t room = TokensOf(receivers.keys[at]);
    const int32_t gpu = IndexOf(receivers.keys[at]);
    const int64_t moved = Smaller(room, wanted);
    const int32_t used = scratch_.num_used[gpu]++;
    const int32_t spare = gpu * layer_.spares_per_gpu + used;
    tokens_.source[spare] = slot;
    tokens_.spare[spare] = moved;
    tokens_.home[slot] -= moved;
    const bool stays = room > moved && used + 1 < layer_.spares_per_gpu;
    Shrink(receivers, at, KeyOf(room - moved, gpu), stays);
    return moved;
  }

  // The least room that takes all, else the most.
  EPLB_HOST_DEVICE int32_t FindReceiver(int32_t expert, int64_t wanted,
                                        const Receivers& receivers) const {
    int32_t low = 0;
    int32_t high = receivers.count;
    const int64_t least = KeyOf(wanted, 0);
    while (low < high) {
      const int32_t middle = low + (high - low) / 2;
      if (receivers.keys[middle] < least) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (int32_t at = low; at < receivers.count; ++at) {
      if (!Holds(IndexOf(receivers.keys[at]), expert)) return at;
    }
    for (int32_t at = low - 1; at >= 0; --at) {
      if (!Holds(IndexOf(receivers.keys[at]), expert)) return at;
    }
    return -1;
  }

  EPLB_HOST_DEVICE bool Holds(int32_t gpu, int32_t expert) const {
    for (int32_t slot = layer_.first_slot[gpu]; slot < layer_.first_slot[gpu + 1]; ++slot) {
      if (layer_.slot_expert[slot] == expert) return true;
    }
    const int32_t first = gpu * layer_.spares_per_gpu;
    for (int32_t spare = first; spare < first + scratch_.num_used[gpu]; ++spare) {
      if (layer_.slot_expert[tokens_.source[spare]] == expert) return true;
    }
    return false;
  }

  // Replaces the key at `at` by a smaller one, in its place, or takes it away.
  EPLB_HOST_DEVICE static void Shrink(Receivers& receivers, int32_t at, int64_t key, bool stays) {
    if (stays) {
      for (; at > 0 && receivers.keys[at - 1] > key; --at)
        receivers.keys[at] = receivers.keys[at - 1];
      receivers.keys[at] = key;
      return;
    }
    --receivers.count;
    for (; at < receivers.count; ++at) receivers.keys[at] = receivers.keys[at + 1];
  }

  EPLB_HOST_DEVICE void Measure(EchoPeak& peak) const {
    int64_t most = 0;
    int64_t num_replicas = 0;
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      int64_t load = 0;
      for (int32_t slot = layer_.first_slot[gpu]; slot < layer_.first_slot[gpu + 1]; ++slot) {
        load += tokens_.home[slot];
      }
      const int32_t first = gpu * layer_.spares_per_gpu;
      for (int32_t spare = first; spare < first + scratch_.num_used[gpu]; ++spare) {
        load += tokens_.spare[spare];
      }
      most = Larger(most, load);
      num_replicas += scratch_.num_used[gpu];
    });
    peak.peak = team_.Max(most);
    peak.num_replicas = static_cast<int32_t>(team_.Sum(num_replicas));
  }

  EchoLayer layer_;
  EchoTokens tokens_;
  EchoScratch scratch_;
  Team team_;
  int64_t goal_ = 0;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_ECHO_ECHO_BODY_H_
