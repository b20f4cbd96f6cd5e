// The integer split of one layer of one batch, for the CPU and for a warp of the GPU.
//
// Problem: expert e has w[e] tokens, and GPUs that hold it. Choose integers x[e, g] >= 0 for them
// with sum over g = w[e], so that the largest of (sum over e of x[e, g]) / speed[g] is least.
//
// Theory: any set Q of GPUs must do the tokens of the experts that only Q holds. So no integer
// split is below the least T with sum over Q of floor(T * speed[g]) >= these tokens. By
// max-flow/min-cut with integer capacities the largest such T over all Q is reached.
//
// Method: Newton on these cuts (Dinkelbach), in integers throughout. The trial T starts at the best
// of cheap lower bounds: of all GPUs, of each GPU, of the GPUs of each expert. Tokens above floor(T
// * speed) move along shortest paths of experts to GPUs with room, by phases of Dinic on sets of
// GPUs by their distance from room. GPUs above T without a path to room reach a set Q that T
// violates. Then T rises to the least that Q allows, and the search goes on with the tokens where
// they are. At last the tokens that a lower T moved for nothing return.
//
// Every step depends on the input alone and no number is rounded. So CPU and GPU, any machine and
// any number of threads give the same quotas.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"
#include "placement/split/split_scratch.h"
#include "placement/split/split_tables.h"

namespace eplb {

// tokens / speed, exact. All products of the body's numbers stay below 2^63: a peak has at most
// kMaxSplitTokens tokens and one for each GPU, and TokensWithin is bounded.
struct SplitPeak {
  int64_t tokens = 0;
  int64_t speed = 1;

  friend bool operator==(const SplitPeak&, const SplitPeak&) = default;
};

inline constexpr int64_t kMaxSplitTokens = int64_t{1} << 36;  // most tokens of a layer
inline constexpr int64_t kMaxSplitSpeed = int64_t{1} << 24;
inline constexpr int64_t kSplitSlackUnit = int64_t{1} << 20;  // a slack of 1

EPLB_HOST_DEVICE inline bool IsBelow(const SplitPeak& a, const SplitPeak& b) {
  return a.tokens * b.speed < b.tokens * a.speed;
}

// Returns the larger peak; if both are equal, the one with the lower speed, so that the order of
// comparisons does not matter.
EPLB_HOST_DEVICE inline SplitPeak LargerPeak(const SplitPeak& a, const SplitPeak& b) {
  if (IsBelow(a, b)) return b;
  return IsBelow(b, a) || a.speed <= b.speed ? a : b;
}

// The most tokens that a GPU of this speed does within the peak. No GPU can have more than
// kMaxSplitTokens, so a fast GPU beside a slow one, whose peak is high, has no more either.
EPLB_HOST_DEVICE inline int64_t TokensWithin(const SplitPeak& peak, int64_t speed) {
  const int64_t product = peak.tokens * speed;
  const int64_t tokens = peak.speed == 1 ? product : product / peak.speed;
  return tokens < kMaxSplitTokens ? tokens : kMaxSplitTokens;
}

// Team that works on a layer: one thread, or the lanes of a warp. ForEach calls with every index
// once and returns when all members have finished. Add adds to a number that other members add to.
// Sum, Max, Union and Largest give every member the same result.
struct OneThread {
  static constexpr bool leader() { return true; }
  template <class Work>
  EPLB_HOST_DEVICE void ForEach(int32_t count, const Work& work) const {
    for (int32_t i = 0; i < count; ++i) work(i);
  }
  template <int kWords, class Work>
  EPLB_HOST_DEVICE void ForEachIn(const GpuSet<kWords>& set, const Work& work) const {
    set.Visit(work);
  }
  EPLB_HOST_DEVICE void Add(int64_t& sum, int64_t value) const { sum += value; }
  EPLB_HOST_DEVICE int64_t Sum(int64_t value) const { return value; }
  EPLB_HOST_DEVICE int64_t Max(int64_t value) const { return value; }
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

  // The GPUs that hold each replicated expert, and those that share one: once a placement.
  EPLB_HOST_DEVICE void FindHolders() {
    team_.ForEach(layer_.num_replicated, [this](int32_t expert) {
      Set holders = Set::None();
      for (int32_t i = layer_.first_of_expert[expert]; i < layer_.first_of_expert[expert + 1];
           ++i) {
        holders.Add(layer_.expert_gpu[i]);
      }
      scratch_.holders[expert] = holders;
    });
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) {
      Set neighbours = Set::None();
      for (int32_t part = layer_.first_on_gpu[gpu]; part < layer_.first_on_gpu[gpu + 1]; ++part) {
        neighbours.AddAll(scratch_.holders[layer_.part_expert[part]]);
      }
      scratch_.neighbours[gpu] = neighbours;
    });
  }

  // Finds the least peak alone. It leaves the parts with a split within the peak that moved more
  // tokens than necessary.
  EPLB_HOST_DEVICE LeastPeak<kWords> FindPeak(const int64_t* counts) {
    counts_ = counts;
    LeastPeak<kWords> least = LowerBound();
    const int32_t crowded = ShareEqually(least.peak);
    if (crowded >= 0) {
      const Set holders = scratch_.holders[crowded];
      least = {.peak = PeakOf(holders, TokensOnlyIn(holders)), .tight = holders};
    }
    MakeRoom(least.peak, 0, [this](int32_t gpu) { return scratch_.room[gpu]; });
    raised_ = false;
    if (!over_.empty()) FindSteps();
    while (!over_.empty()) {
      if (FindLevels()) {
        if (team_.leader()) PushPhase();
        ShareChanges();
        continue;
      }
      const SplitPeak before = least.peak;
      least = {.peak = PeakOf(reached_, TokensOnlyIn(reached_)), .tight = reached_};
      raised_ = true;
      Raise(before, least.peak, 0);
    }
    return least;
  }

  // Leaves the parts with the split: none of a GPU's sums is above its share of the least peak,
  // plus `slack` / kSplitSlackUnit of it. If the lower bound was the peak and there is no slack,
  // only tokens above the peak moved from equal shares, along shortest paths. Otherwise no token
  // can return from a part that has more than equal shares to one that has less.
  EPLB_HOST_DEVICE LeastPeak<kWords> Solve(const int64_t* counts, int64_t slack) {
    const LeastPeak<kWords> least = FindPeak(counts);
    if (slack > 0) Raise(least.peak, least.peak, slack);
    if ((raised_ || slack > 0) && team_.leader()) Return();
    team_.Sync();
    return least;
  }

  // quotas: [S]. The slots of an expert on one GPU take equal shares.
  EPLB_HOST_DEVICE void WriteQuotas(int64_t* quotas) {
    const int64_t* const from[2] = {counts_, scratch_.part_tokens};  // a select without a branch
    team_.ForEach(layer_.num_slots, [&](int32_t slot) {
      const int32_t source = layer_.slot_source[slot];
      quotas[slot] = from[source & 1][source >> 1];
    });
    team_.ForEach(layer_.num_shared, [&](int32_t i) {
      const int32_t among = layer_.shared_among[i];
      int64_t& quota = quotas[layer_.shared_slot[i]];
      const int64_t tokens = among == 0 ? 0 : quota;
      const int64_t each = among == 0 ? 0 : tokens / among;
      quota = each + (layer_.shared_place[i] < tokens - each * among ? 1 : 0);
    });
  }

 private:
  EPLB_HOST_DEVICE static int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
  EPLB_HOST_DEVICE static int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

  // The mean, or the GPU that has most with its fixed experts alone.
  EPLB_HOST_DEVICE LeastPeak<kWords> LowerBound() {
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) { scratch_.fixed[gpu] = 0; });
    int64_t tokens = 0;
    team_.ForEach(layer_.num_fixed, [&](int32_t i) {
      const int64_t count = counts_[layer_.fixed_expert[i]];
      team_.Add(scratch_.fixed[layer_.fixed_gpu[i]], count);
      tokens += count;
    });
    team_.ForEach(layer_.num_replicated,
                  [&](int32_t expert) { tokens += counts_[layer_.expert[expert]]; });
    Set usable = Set::None();
    SplitPeak most;
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      if (layer_.speed[gpu] == 0) return;
      usable.Add(gpu);
      if (layer_.equal_speeds) {
        most.tokens = Larger(most.tokens, scratch_.fixed[gpu]);
      } else {
        most = LargerPeak(most, {scratch_.fixed[gpu], layer_.speed[gpu]});
      }
    });
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

  // The parts at equal shares, and what GPUs have then. Returns the expert whose GPUs have most to
  // do above `peak` for the experts that only they hold, per GPU; of equal ones the first; -1:
  // none.
  EPLB_HOST_DEVICE int32_t ShareEqually(const SplitPeak& peak) {
    team_.ForEach(layer_.num_gpus,
                  [this](int32_t gpu) { scratch_.room[gpu] = scratch_.fixed[gpu]; });
    int64_t few = 0;
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      const int64_t tokens = counts_[layer_.expert[expert]];
      const int64_t each = tokens / layer_.num_replicas[expert];
      scratch_.each[expert] = each;
      scratch_.rest[expert] = tokens - each * layer_.num_replicas[expert];
      scratch_.above[expert] = tokens;
      few |= each == 0 ? 1 : 0;
    });
    few_ = team_.Max(few) > 0;
    team_.ForEach(layer_.first_of_expert[layer_.num_replicated], [&](int32_t i) {
      const int32_t expert = layer_.expert_of[i];
      const int32_t gpu = layer_.expert_gpu[i];
      const int64_t slots = layer_.expert_slots[i];
      const int64_t left = scratch_.rest[expert] - layer_.slots_before[i];
      const int64_t equal = scratch_.each[expert] * slots + Larger(0, Smaller(left, slots));
      scratch_.part_tokens[layer_.expert_part[i]] = equal;
      scratch_.equal[layer_.expert_part[i]] = equal;
      team_.Add(scratch_.room[gpu], equal);
      team_.Add(scratch_.above[expert],
                scratch_.fixed[gpu] - TokensWithin(peak, layer_.speed[gpu]));
    });
    team_.ForEach(layer_.num_inner, [this](int32_t i) {
      team_.Add(scratch_.above[layer_.outer_expert[i]],
                counts_[layer_.expert[layer_.inner_expert[i]]]);
    });
    return MostAbove();
  }

  EPLB_HOST_DEVICE int32_t MostAbove() const {
    SplitPeak most;
    int64_t from_last = 0;  // so that the first of equal ones is the largest
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      if (scratch_.above[expert] <= 0) return;
      const int32_t num_gpus = layer_.first_of_expert[expert + 1] - layer_.first_of_expert[expert];
      const SplitPeak of_each{scratch_.above[expert], num_gpus};
      if (!IsBelow(most, of_each)) return;
      most = of_each;
      from_last = layer_.num_replicated - expert;
    });
    from_last = team_.Max(IsBelow(most, team_.Largest(most)) ? 0 : from_last);
    return from_last == 0 ? -1 : static_cast<int32_t>(layer_.num_replicated - from_last);
  }

  // The least peak whose tokens on `gpus` add up to `tokens`.
  EPLB_HOST_DEVICE SplitPeak PeakOf(const Set& gpus, int64_t tokens) const {
    int64_t speed = 0;
    team_.ForEachIn(gpus, [&](int32_t gpu) { speed += layer_.speed[gpu]; });
    speed = team_.Sum(speed);
    if (tokens == 0 || speed == 0) return {};
    if (layer_.equal_speeds) return {(tokens + speed - 1) / speed, 1};
    // A peak of d / speed gives floor(d * speed[g] / speed) to g. Bisection finds d; from the d
    // below it, each step adds the GPU whose next token has the lowest peak.
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
    team_.ForEachIn(gpus, [&](int32_t gpu) { sum += TokensWithin(peak, layer_.speed[gpu]); });
    return team_.Sum(sum);
  }

  // The lowest peak above `peak` with `tokens` tokens within it. REQUIRES: `peak` has fewer.
  EPLB_HOST_DEVICE SplitPeak NextPeak(const Set& gpus, SplitPeak peak, int64_t tokens) const {
    while (true) {
      SplitPeak next{0, 0};
      gpus.Visit([&](int32_t gpu) {
        const SplitPeak one_more{TokensWithin(peak, layer_.speed[gpu]) + 1, layer_.speed[gpu]};
        if (next.speed == 0 || IsBelow(one_more, next)) next = one_more;
      });
      if (SumWithin(gpus, next) >= tokens) return next;
      peak = next;
    }
  }

  // Tokens of the experts that only these GPUs hold.
  EPLB_HOST_DEVICE int64_t TokensOnlyIn(const Set& gpus) const {
    int64_t tokens = 0;
    team_.ForEachIn(gpus, [&](int32_t gpu) { tokens += scratch_.fixed[gpu]; });
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      if (scratch_.holders[expert].IsWithin(gpus)) tokens += counts_[layer_.expert[expert]];
    });
    return team_.Sum(tokens);
  }

  // Makes room[g] what GPU g's tokens leave of its share of the peak. tokens_of: by GPU.
  template <class Tokens>
  EPLB_HOST_DEVICE void MakeRoom(const SplitPeak& peak, int64_t slack, const Tokens& tokens_of) {
    Set over = Set::None();
    Set roomy = Set::None();
    team_.ForEach(layer_.num_gpus, [&](int32_t gpu) {
      const int64_t within = TokensWithin(peak, layer_.speed[gpu]);
      const int64_t room = within + within * slack / kSplitSlackUnit - tokens_of(gpu);
      scratch_.room[gpu] = room;
      over.AddIf(room < 0, gpu);
      roomy.AddIf(room > 0, gpu);
    });
    over_ = team_.Union(over);
    roomy_ = team_.Union(roomy);
  }

  // After a higher peak, or slack.
  EPLB_HOST_DEVICE void Raise(const SplitPeak& before, const SplitPeak& peak, int64_t slack) {
    MakeRoom(peak, slack, [&](int32_t gpu) {
      return TokensWithin(before, layer_.speed[gpu]) - scratch_.room[gpu];
    });
  }

  // Gives the leader's changes to all members.
  EPLB_HOST_DEVICE void ShareChanges() {
    team_.Sync();  // room, tokens and steps: Union orders no memory
    const bool leads = team_.leader();
    over_ = team_.Union(leads ? over_ : Set::None());
    roomy_ = team_.Union(leads ? roomy_ : Set::None());
    partial_ = team_.Union(leads ? partial_ : Set::None());
  }

  EPLB_HOST_DEVICE Set StepsOf(int32_t gpu) const {
    Set steps = Set::None();
    for (int32_t part = layer_.first_on_gpu[gpu]; part < layer_.first_on_gpu[gpu + 1]; ++part) {
      steps.AddAllIf(scratch_.part_tokens[part] > 0, scratch_.holders[layer_.part_expert[part]]);
    }
    return steps;
  }

  // At equal shares.
  EPLB_HOST_DEVICE void FindSteps() {
    partial_ = few_ ? Set::All(layer_.num_gpus) : Set::None();
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) {
      scratch_.steps[gpu] = few_ ? StepsOf(gpu) : scratch_.neighbours[gpu];
    });
  }

  // Searches breadth first from the GPUs with room, against the direction of tokens, until every
  // GPU above the peak has its distance. False if the GPUs of `reached_` have none, and hold too
  // much.
  EPLB_HOST_DEVICE bool FindLevels() {
    Set left = over_;
    Set level = roomy_;
    Set unknown = Set::All(layer_.num_gpus);
    unknown.RemoveAll(level);
    if (team_.leader()) scratch_.levels[0] = level;
    num_levels_ = 1;
    while (!left.empty()) {
      level = NextLevel(level, unknown);
      if (level.empty()) {
        FindReached(left);
        return false;
      }
      unknown.RemoveAll(level);
      left.RemoveAll(level);
      if (team_.leader()) scratch_.levels[num_levels_] = level;
      ++num_levels_;
    }
    return true;
  }

  // The GPUs of `unknown` from which tokens can move to `level`: its neighbours, unless their parts
  // have no tokens.
  EPLB_HOST_DEVICE Set NextLevel(const Set& level, const Set& unknown) const {
    Set next = Set::None();
    team_.ForEachIn(level, [&](int32_t gpu) { next.AddAll(scratch_.neighbours[gpu]); });
    next = team_.Union(next);
    next.KeepOnly(unknown);
    Set doubtful = next;
    doubtful.KeepOnly(partial_);
    if (doubtful.empty()) return next;
    Set wrong = Set::None();
    team_.ForEachIn(doubtful,
                    [&](int32_t gpu) { wrong.AddIf(!scratch_.steps[gpu].Meets(level), gpu); });
    next.RemoveAll(team_.Union(wrong));
    return next;
  }

  EPLB_HOST_DEVICE void FindReached(const Set& from) {
    Set level = from;
    reached_ = from;
    while (!level.empty()) {
      Set next = Set::None();
      team_.ForEachIn(level, [&](int32_t gpu) { next.AddAll(scratch_.steps[gpu]); });
      level = team_.Union(next);
      level.RemoveAll(reached_);
      reached_.AddAll(level);
    }
  }

  EPLB_HOST_DEVICE void PushPhase() {
    for (int32_t depth = 1; depth < num_levels_; ++depth) {
      Set sources = over_;
      sources.KeepOnly(scratch_.levels[depth]);
      sources.Visit([this, depth](int32_t gpu) { PushFrom(gpu, depth); });
    }
  }

  // Pushes along shortest paths to room until the GPU has no overload or no path is left. A dead
  // end leaves its level, because it stays one for the rest of the phase. Tokens that pass a step
  // are moved when the path leaves it. No earlier step needs them, because levels only shrink
  // during a phase. limit[i]: the most that may be pushed in all while the path has step i - 1.
  EPLB_HOST_DEVICE void PushFrom(int32_t source, int32_t depth) {
    int32_t length = 0;
    scratch_.path[0] = source;
    scratch_.limit[0] = -scratch_.room[source];
    pushed_ = 0;
    while (true) {
      const int32_t gpu = scratch_.path[length];
      if (length == depth - 1) {
        pushed_ += FillRoom(gpu, scratch_.limit[length] - pushed_);
        if (pushed_ < scratch_.limit[length]) scratch_.levels[1].Remove(gpu);
        if (length == 0) break;
        do {
          EndStep(--length);
        } while (length > 0 && pushed_ == scratch_.limit[length]);
        if (pushed_ == scratch_.limit[length]) break;
        continue;
      }
      const Set& nearer = scratch_.levels[depth - length - 1];
      if (scratch_.steps[gpu].Meets(nearer)) {
        BeginStep(length++, nearer);
        continue;
      }
      scratch_.levels[depth - length].Remove(gpu);
      if (length == 0) break;
      EndStep(--length);
    }
    scratch_.room[source] += pushed_;
    if (scratch_.room[source] == 0) over_.Remove(source);
  }

  // By the GPU's first part that has tokens and whose expert a GPU of `level` holds.
  // REQUIRES: there is one.
  EPLB_HOST_DEVICE void BeginStep(int32_t step, const Set& level) {
    int32_t out = layer_.first_on_gpu[scratch_.path[step]];
    while (scratch_.part_tokens[out] == 0 ||
           !scratch_.holders[layer_.part_expert[out]].Meets(level)) {
      ++out;
    }
    int32_t in = layer_.next_part[out];
    while (!level.Has(layer_.part_gpu[in])) in = layer_.next_part[in];
    scratch_.path_out[step] = out;
    scratch_.path_in[step] = in;
    scratch_.pushed_before[step] = pushed_;
    scratch_.path[step + 1] = layer_.part_gpu[in];
    scratch_.limit[step + 1] = Smaller(scratch_.limit[step], pushed_ + scratch_.part_tokens[out]);
  }

  EPLB_HOST_DEVICE void EndStep(int32_t step) {
    const int64_t tokens = pushed_ - scratch_.pushed_before[step];
    if (tokens > 0) Move(scratch_.path_out[step], scratch_.path_in[step], tokens);
  }

  EPLB_HOST_DEVICE void Move(int32_t out, int32_t in, int64_t tokens) {
    scratch_.part_tokens[in] += tokens;
    scratch_.part_tokens[out] -= tokens;
    scratch_.steps[layer_.part_gpu[in]].AddAll(scratch_.holders[layer_.part_expert[out]]);
    if (scratch_.part_tokens[out] > 0) return;
    const int32_t gpu = layer_.part_gpu[out];
    scratch_.steps[gpu] = StepsOf(gpu);
    partial_.Add(gpu);
  }

  // Up to `most` tokens to the GPUs with room that the GPU's parts lead to. Returns how many.
  EPLB_HOST_DEVICE int64_t FillRoom(int32_t gpu, int64_t most) {
    int64_t left = scratch_.steps[gpu].Meets(roomy_) ? most : 0;
    if (left == 0) return 0;
    for (int32_t out = layer_.first_on_gpu[gpu]; out < layer_.first_on_gpu[gpu + 1]; ++out) {
      Set sinks = scratch_.holders[layer_.part_expert[out]];
      sinks.KeepOnly(roomy_);
      if (sinks.empty()) continue;
      for (int32_t in = layer_.next_part[out]; in != out; in = layer_.next_part[in]) {
        const int32_t to = layer_.part_gpu[in];
        if (!sinks.Has(to)) continue;
        const int64_t tokens = Smaller(Smaller(left, scratch_.room[to]), scratch_.part_tokens[out]);
        if (tokens == 0) break;
        left -= tokens;
        scratch_.room[to] -= tokens;
        if (scratch_.room[to] == 0) roomy_.Remove(to);
        Move(out, in, tokens);
        if (left == 0) return most;
      }
    }
    return most - left;
  }

  // Takes tokens back to GPUs with room whose parts have less than equal shares, from parts that
  // have more, until none can be.
  EPLB_HOST_DEVICE void Return() {
    Set todo = roomy_;
    for (int32_t gpu = todo.Lowest(); gpu >= 0; gpu = todo.Lowest()) {
      todo.Remove(gpu);
      for (int32_t part = layer_.first_on_gpu[gpu];
           part < layer_.first_on_gpu[gpu + 1] && scratch_.room[gpu] > 0; ++part) {
        if (scratch_.part_tokens[part] < scratch_.equal[part]) ReturnTo(gpu, part, todo);
      }
    }
  }

  EPLB_HOST_DEVICE void ReturnTo(int32_t gpu, int32_t part, Set& todo) {
    const int32_t expert = layer_.part_expert[part];
    int64_t wanted = Smaller(scratch_.room[gpu], scratch_.equal[part] - scratch_.part_tokens[part]);
    for (int32_t i = layer_.first_of_expert[expert];
         wanted > 0 && i < layer_.first_of_expert[expert + 1]; ++i) {
      const int32_t other = layer_.expert_part[i];
      const int64_t tokens = Smaller(wanted, scratch_.part_tokens[other] - scratch_.equal[other]);
      if (tokens <= 0) continue;
      wanted -= tokens;
      scratch_.part_tokens[other] -= tokens;
      scratch_.part_tokens[part] += tokens;
      scratch_.room[gpu] -= tokens;
      scratch_.room[layer_.expert_gpu[i]] += tokens;
      todo.Add(layer_.expert_gpu[i]);
    }
  }

  const SplitLayer& layer_;
  SplitScratch<kWords> scratch_;
  Team team_;
  const int64_t* counts_ = nullptr;
  Set over_ = Set::None();   // above the peak
  Set roomy_ = Set::None();  // below it
  Set reached_ = Set::None();
  Set partial_ = Set::None();  // may have a part without tokens: not all neighbours are steps
  int64_t pushed_ = 0;         // by PushFrom
  bool few_ = false;           // an expert has fewer tokens than slots
  bool raised_ = false;        // the peak is above the lower bound that FindPeak began with
  int32_t num_levels_ = 0;
};

}  // namespace eplb
