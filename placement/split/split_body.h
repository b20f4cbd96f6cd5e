// The integer split of one layer of one batch, for the CPU and for a warp of the GPU.
//
// Problem: expert e has w[e] tokens, and GPUs that hold it. Choose integers x[e, g] >= 0 for them
// with sum over g = w[e], so that the largest of (sum over e of x[e, g]) / speed[g] is least.
// Theory: for any set Q of GPUs the tokens of the experts that only Q holds must be done by Q, so
// no integer split is below the least T with sum over Q of floor(T * speed[g]) >= these tokens. By
// max-flow/min-cut with integer capacities the largest such T over all Q is reached.
// Method: Newton on these cuts (Dinkelbach), in integers throughout. For a trial T, which starts at
// a lower bound, push what GPUs have above floor(T * speed) along shortest paths of experts to GPUs
// with room (Dinic's phases on sets of GPUs). If some is left, the GPUs that can still be reached
// from it are a set Q that T violates: raise T to the least that Q allows, and go on.
// Every step depends on the input alone and no number is rounded, so that CPU and GPU, any machine
// and any number of threads give the same quotas.
#ifndef EPLB_PLACEMENT_SPLIT_SPLIT_BODY_H_
#define EPLB_PLACEMENT_SPLIT_SPLIT_BODY_H_

#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"

namespace eplb {

// tokens / speed, exact. All products of the body's numbers stay below 2^63.
struct SplitPeak {
  int64_t tokens = 0;
  int64_t speed = 1;

  friend bool operator==(const SplitPeak&, const SplitPeak&) = default;
};

inline constexpr int64_t kMaxSplitTokens = int64_t{1} << 36;  // of a layer
inline constexpr int64_t kMaxSplitSpeed = int64_t{1} << 24;
inline constexpr int64_t kSplitSlackUnit = int64_t{1} << 20;  // a slack of 1

EPLB_HOST_DEVICE inline bool IsBelow(const SplitPeak& a, const SplitPeak& b) {
  return a.tokens * b.speed < b.tokens * a.speed;
}

// The most tokens that a GPU of this speed does within the peak.
EPLB_HOST_DEVICE inline int64_t TokensWithin(const SplitPeak& peak, int64_t speed) {
  return peak.speed == 1 ? peak.tokens * speed : peak.tokens * speed / peak.speed;
}

// One layer of a placement: views into memory of the CPU or of the GPU. An expert that several GPUs
// hold is `replicated` and has a part for each of them; the others are fixed.
struct SplitLayer {
  int32_t num_gpus = 0;
  int32_t num_slots = 0;
  int32_t num_replicated = 0;
  bool equal_speeds = true;               // of the usable GPUs: then each is 1
  const int64_t* speed = nullptr;         // [G], 0: unusable
  const int32_t* first_fixed = nullptr;   // [G + 1] into fixed_expert
  const int32_t* fixed_expert = nullptr;  // GPU by GPU
  const int32_t* expert = nullptr;        // [num_replicated]
  const int32_t* num_replicas = nullptr;  // [num_replicated], slots
  const int32_t* first_part = nullptr;    // [num_replicated + 1] into the parts
  const int32_t* part_gpu = nullptr;      // by part, rising within an expert
  const int32_t* part_slots = nullptr;    // by part, slots of the expert on this GPU
  const int32_t* part_before = nullptr;   // by part, slots of the expert in earlier parts
  const int32_t* part_expert = nullptr;   // by part, index in `expert`
  const int32_t* first_on_gpu = nullptr;  // [G + 1] into gpu_part
  const int32_t* gpu_part = nullptr;      // parts, GPU by GPU
  const int32_t* slot_expert = nullptr;   // [S], -1: none
  const int32_t* slot_part = nullptr;     // [S], -1: its expert is fixed
  const int32_t* slot_among = nullptr;    // [S], slots of the expert on this GPU
  const int32_t* slot_place = nullptr;    // [S], how many of them are before this one
};

// Scratch memory of one layer.
template <int kWords>
struct SplitScratch {
  int64_t* part_tokens = nullptr;     // by part
  int64_t* fixed = nullptr;           // [G]
  int64_t* room = nullptr;            // [G]
  GpuSet<kWords>* reach = nullptr;    // [G], the GPUs that its tokens could go to
  GpuSet<kWords>* holders = nullptr;  // [num_replicated]
  GpuSet<kWords>* levels = nullptr;   // [G + 1]
  int32_t* path = nullptr;            // [G + 1], GPUs
  int32_t* path_part = nullptr;       // [G + 1], the part that tokens leave at each step
};

// Who works on a layer: one thread, or the lanes of a warp. ForEach calls with every index once and
// returns when all have; Sum, Union and Peak give every member the same result.
struct OneThread {
  static constexpr bool leader() { return true; }
  template <class Work>
  EPLB_HOST_DEVICE void ForEach(int32_t count, const Work& work) const {
    for (int32_t i = 0; i < count; ++i) work(i);
  }
  EPLB_HOST_DEVICE int64_t Sum(int64_t value) const { return value; }
  template <int kWords>
  EPLB_HOST_DEVICE GpuSet<kWords> Union(const GpuSet<kWords>& set) const {
    return set;
  }
  EPLB_HOST_DEVICE SplitPeak Largest(const SplitPeak& peak) const { return peak; }
  EPLB_HOST_DEVICE void Sync() const {}
};

template <int kWords>
struct LeastPeak {
  SplitPeak peak;
  // The certificate: the experts that only these GPUs hold have too many tokens for any lower peak.
  GpuSet<kWords> tight;
};

// Solves one layer. counts: [E], of the layer, each >= 0, sum <= kMaxSplitTokens.
template <int kWords, class Team>
class SplitBody {
 public:
  using Set = GpuSet<kWords>;

  EPLB_HOST_DEVICE SplitBody(const SplitLayer& layer, const SplitScratch<kWords>& scratch,
                             const Team& team)
      : layer_(layer), scratch_(scratch), team_(team) {}

  // The sets of GPUs that hold each replicated expert: once a placement.
  EPLB_HOST_DEVICE void FindHolders() {
    team_.ForEach(layer_.num_replicated, [this](int32_t expert) {
      Set holders = Set::None();
      for (int32_t part = layer_.first_part[expert]; part < layer_.first_part[expert + 1]; ++part) {
        holders.Add(layer_.part_gpu[part]);
      }
      scratch_.holders[expert] = holders;
    });
  }

  // The least peak alone: the parts are left with a split within it, which moved more than it
  // needs.
  EPLB_HOST_DEVICE LeastPeak<kWords> FindPeak(const int64_t* counts) {
    counts_ = counts;
    LeastPeak<kWords> least = LowerBound();
    ShareEqually();
    raised_ = false;
    while (!Push(least.peak, 0)) {
      least = {.peak = PeakOf(reached_, TokensOnlyIn(reached_)), .tight = reached_};
      raised_ = true;
    }
    return least;
  }

  // Leaves the parts with the split: none of a GPU's sums is above its share of the least peak,
  // plus `slack` / kSplitSlackUnit of it. Starts from equal shares and moves only what is above
  // that.
  EPLB_HOST_DEVICE LeastPeak<kWords> Solve(const int64_t* counts, int64_t slack) {
    const LeastPeak<kWords> least = FindPeak(counts);
    if (raised_ || slack > 0) {
      ShareEqually();
      (void)Push(least.peak, slack);
    }
    return least;
  }

  // quotas: [S]. The slots of an expert on one GPU take equal shares.
  EPLB_HOST_DEVICE void WriteQuotas(int64_t* quotas) {
    team_.ForEach(layer_.num_slots, [this, quotas](int32_t slot) {
      const int32_t expert = layer_.slot_expert[slot];
      const int32_t part = layer_.slot_part[slot];
      int64_t tokens = 0;
      if (part >= 0) {
        tokens = scratch_.part_tokens[part];
      } else if (expert >= 0) {
        tokens = counts_[expert];
      }
      const int32_t among = layer_.slot_among[slot];
      if (among > 1) {
        tokens = tokens / among + (layer_.slot_place[slot] < tokens % among ? 1 : 0);
      }
      quotas[slot] = tokens;
    });
  }

 private:
  EPLB_HOST_DEVICE static int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }

  // The mean, or the GPU that has most with its fixed experts alone.
  EPLB_HOST_DEVICE LeastPeak<kWords> LowerBound() {
    int64_t tokens = 0;
    Set usable = Set::None();
    SplitPeak most;
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      int64_t fixed = 0;
      for (int32_t i = layer_.first_fixed[gpu]; i < layer_.first_fixed[gpu + 1]; ++i) {
        fixed += counts_[layer_.fixed_expert[i]];
      }
      scratch_.fixed[gpu] = fixed;
      if (layer_.speed[gpu] == 0) return;
      tokens += fixed;
      usable.Add(gpu);
      const SplitPeak peak{fixed, layer_.speed[gpu]};
      if (IsBelow(most, peak)) most = peak;
    });
    team_.ForEach(layer_.num_replicated,
                  [&](int32_t expert) { tokens += counts_[layer_.expert[expert]]; });
    tokens = team_.Sum(tokens);
    usable = team_.Union(usable);
    most = team_.Largest(most);
    const SplitPeak mean = PeakOf(usable, tokens);
    if (!IsBelow(mean, most)) return {.peak = mean, .tight = usable};
    Set one = Set::None();
    for (int32_t gpu = 0; gpu < layer_.num_gpus && one.empty(); ++gpu) {
      const SplitPeak peak{scratch_.fixed[gpu], layer_.speed[gpu]};
      if (layer_.speed[gpu] > 0 && !IsBelow(peak, most)) one.Add(gpu);
    }
    return {.peak = most, .tight = one};
  }

  EPLB_HOST_DEVICE void ShareEqually() {
    team_.ForEach(layer_.num_replicated, [this](int32_t expert) {
      const int64_t tokens = counts_[layer_.expert[expert]];
      const int64_t each = tokens / layer_.num_replicas[expert];
      const int64_t rest = tokens % layer_.num_replicas[expert];
      for (int32_t part = layer_.first_part[expert]; part < layer_.first_part[expert + 1]; ++part) {
        const int64_t slots = layer_.part_slots[part];
        const int64_t left = rest - layer_.part_before[part];
        scratch_.part_tokens[part] = each * slots + (left > 0 ? Smaller(left, slots) : 0);
      }
    });
  }

  // The least peak whose tokens on `gpus` add up to `tokens`.
  EPLB_HOST_DEVICE SplitPeak PeakOf(const Set& gpus, int64_t tokens) const {
    int64_t speed = 0;
    for (int32_t gpu = 0; gpu < layer_.num_gpus; ++gpu) {
      if (gpus.Has(gpu)) speed += layer_.speed[gpu];
    }
    if (tokens == 0 || speed == 0) return {};
    if (layer_.equal_speeds) return {(tokens + speed - 1) / speed, 1};
    // A peak of d / speed gives floor(d * speed[g] / speed) to g: bisection on d, and from the d
    // below GPU by GPU whose next token comes at the lowest peak.
    int64_t below = tokens - 1;
    int64_t enough = tokens + layer_.num_gpus;
    while (enough - below > 1) {
      const int64_t middle = below + (enough - below) / 2;
      (SumWithin(gpus, {middle, speed}) >= tokens ? enough : below) = middle;
    }
    return NextPeak(gpus, {below, speed}, tokens);
  }

  EPLB_HOST_DEVICE int64_t SumWithin(const Set& gpus, const SplitPeak& peak) const {
    int64_t sum = 0;
    for (int32_t gpu = 0; gpu < layer_.num_gpus; ++gpu) {
      if (gpus.Has(gpu)) sum += TokensWithin(peak, layer_.speed[gpu]);
    }
    return sum;
  }

  // The lowest peak above `peak` with `tokens` tokens within it. REQUIRES: `peak` has fewer.
  EPLB_HOST_DEVICE SplitPeak NextPeak(const Set& gpus, SplitPeak peak, int64_t tokens) const {
    while (true) {
      SplitPeak next{0, 0};
      for (int32_t gpu = 0; gpu < layer_.num_gpus; ++gpu) {
        if (!gpus.Has(gpu)) continue;
        const SplitPeak one_more{TokensWithin(peak, layer_.speed[gpu]) + 1, layer_.speed[gpu]};
        if (next.speed == 0 || IsBelow(one_more, next)) next = one_more;
      }
      if (SumWithin(gpus, next) >= tokens) return next;
      peak = next;
    }
  }

  // Tokens of the experts that only these GPUs hold.
  EPLB_HOST_DEVICE int64_t TokensOnlyIn(const Set& gpus) const {
    int64_t tokens = 0;
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      if (gpus.Has(gpu)) tokens += scratch_.fixed[gpu];
    });
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      if (scratch_.holders[expert].IsWithin(gpus)) tokens += counts_[layer_.expert[expert]];
    });
    return team_.Sum(tokens);
  }

  EPLB_HOST_DEVICE void FindReach(int32_t gpu) {
    Set reach = Set::None();
    for (int32_t i = layer_.first_on_gpu[gpu]; i < layer_.first_on_gpu[gpu + 1]; ++i) {
      const int32_t part = layer_.gpu_part[i];
      if (scratch_.part_tokens[part] > 0) reach.AddAll(scratch_.holders[layer_.part_expert[part]]);
    }
    scratch_.reach[gpu] = reach;
  }

  // False when a GPU stays above the peak and its slack; `reached_` are the GPUs that it reaches.
  EPLB_HOST_DEVICE bool Push(const SplitPeak& peak, int64_t slack) {
    Set over = Set::None();
    Set roomy = Set::None();
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      const int64_t within = TokensWithin(peak, layer_.speed[gpu]);
      int64_t room = within + within * slack / kSplitSlackUnit - scratch_.fixed[gpu];
      for (int32_t i = layer_.first_on_gpu[gpu]; i < layer_.first_on_gpu[gpu + 1]; ++i) {
        room -= scratch_.part_tokens[layer_.gpu_part[i]];
      }
      scratch_.room[gpu] = room;
      if (room < 0) over.Add(gpu);
      if (room > 0) roomy.Add(gpu);
    });
    over = team_.Union(over);
    if (over.empty()) return true;
    roomy = team_.Union(roomy);
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) { FindReach(gpu); });
    // Every phase lengthens the shortest path, which visits no GPU twice.
    while (!over.empty()) {
      if (!FindLevels(over, roomy)) return false;
      if (team_.leader()) PushPhase(over);
      team_.Sync();
      Refresh(over, roomy);
    }
    return true;
  }

  // What the leader changed, for all.
  EPLB_HOST_DEVICE void Refresh(Set& over, Set& roomy) const {
    Set now_over = Set::None();
    Set now_roomy = Set::None();
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      if (scratch_.room[gpu] < 0) now_over.Add(gpu);
      if (scratch_.room[gpu] > 0) now_roomy.Add(gpu);
    });
    over = team_.Union(now_over);
    roomy = team_.Union(now_roomy);
  }

  // Breadth first from the overloaded GPUs, up to the level of the first one with room.
  EPLB_HOST_DEVICE bool FindLevels(const Set& over, const Set& roomy) {
    Set reached = over;
    Set level = over;
    num_levels_ = 1;
    if (team_.leader()) scratch_.levels[0] = over;
    while (!level.Meets(roomy)) {
      Set next = Set::None();
      team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
        if (level.Has(gpu)) next.AddAll(scratch_.reach[gpu]);
      });
      next = team_.Union(next);
      next.RemoveAll(reached);
      if (next.empty()) {
        reached_ = reached;
        return false;
      }
      reached.AddAll(next);
      level = next;
      if (team_.leader()) scratch_.levels[num_levels_] = next;
      ++num_levels_;
    }
    if (team_.leader()) scratch_.levels[num_levels_ - 1].KeepOnly(roomy);
    return true;
  }

  EPLB_HOST_DEVICE void PushPhase(const Set& over) {
    Set sources = over;
    for (int32_t gpu = sources.Lowest(); gpu >= 0; gpu = sources.Lowest()) {
      PushFrom(gpu);
      sources.Remove(gpu);
    }
  }

  // Pushes along paths of rising levels until the GPU has no overload or no path is left. A dead
  // end leaves its level: it stays one for the rest of the phase.
  EPLB_HOST_DEVICE void PushFrom(int32_t source) {
    int32_t* const path = scratch_.path;
    int32_t length = 1;
    path[0] = source;
    while (scratch_.room[source] < 0) {
      if (length == num_levels_) {
        MoveAlongPath();
        length = 1;
        continue;
      }
      const int32_t gpu = path[length - 1];
      const int32_t next = scratch_.reach[gpu].LowestInBoth(scratch_.levels[length]);
      if (next >= 0) {
        path[length++] = next;
        continue;
      }
      scratch_.levels[length - 1].Remove(gpu);
      if (--length == 0) return;
    }
  }

  // Of the parts on `from` whose expert `to` holds, the one with most tokens.
  EPLB_HOST_DEVICE int32_t LargestPart(int32_t from, int32_t to) const {
    int32_t largest = -1;
    int64_t most = 0;
    for (int32_t i = layer_.first_on_gpu[from]; i < layer_.first_on_gpu[from + 1]; ++i) {
      const int32_t part = layer_.gpu_part[i];
      if (scratch_.part_tokens[part] <= most) continue;
      if (!scratch_.holders[layer_.part_expert[part]].Has(to)) continue;
      most = scratch_.part_tokens[part];
      largest = part;
    }
    return largest;
  }

  // From the path's first GPU to its last one, as much as both and every step allow.
  EPLB_HOST_DEVICE void MoveAlongPath() {
    const int32_t* const path = scratch_.path;
    const int32_t source = path[0];
    const int32_t sink = path[num_levels_ - 1];
    int64_t tokens = Smaller(-scratch_.room[source], scratch_.room[sink]);
    for (int32_t step = 0; step + 1 < num_levels_; ++step) {
      const int32_t part = LargestPart(path[step], path[step + 1]);
      scratch_.path_part[step] = part;
      tokens = Smaller(tokens, scratch_.part_tokens[part]);
    }
    for (int32_t step = 0; step + 1 < num_levels_; ++step) {
      const int32_t out = scratch_.path_part[step];
      const int32_t expert = layer_.part_expert[out];
      int32_t in = layer_.first_part[expert];
      while (layer_.part_gpu[in] != path[step + 1]) ++in;
      scratch_.part_tokens[out] -= tokens;
      scratch_.part_tokens[in] += tokens;
      scratch_.reach[path[step + 1]].AddAll(scratch_.holders[expert]);
      if (scratch_.part_tokens[out] == 0) FindReach(path[step]);
    }
    scratch_.room[source] += tokens;
    scratch_.room[sink] -= tokens;
    if (scratch_.room[sink] == 0) scratch_.levels[num_levels_ - 1].Remove(sink);
  }

  const SplitLayer& layer_;
  SplitScratch<kWords> scratch_;
  Team team_;
  const int64_t* counts_ = nullptr;
  Set reached_ = Set::None();
  bool raised_ = false;  // the peak is above the lower bound that FindPeak began with
  int32_t num_levels_ = 0;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_SPLIT_BODY_H_
