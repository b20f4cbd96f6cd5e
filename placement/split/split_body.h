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
#include "placement/split/split_team.h"

namespace eplb {

template <int kWords>
struct LeastPeak {
  SplitPeak peak;
  // The certificate: the experts that only these GPUs hold have too many tokens for any lower peak.
  GpuSet<kWords> tight;
};

// Solves one layer. counts: [E], of the layer, each >= 0, with a sum of at most kMaxSplitTokens, or
// kMaxNarrowTokens if Tokens have 32 bits.
template <int kWords, class Token, class Layer, class Team>
class SplitBody {
 public:
  using Set = GpuSet<kWords>;
  using Scratch = SplitScratch<kWords, Token>;

  // holders, neighbours: of FindHolders and FindNeighbours.
  EPLB_HOST_DEVICE SplitBody(const Layer& layer, const Set* holders, const Set* neighbours,
                             const Scratch& scratch, const Team& team)
      : layer_(layer),
        holders_(holders),
        neighbours_(neighbours),
        scratch_(scratch),
        team_(team),
        room_(scratch.room),
        allowed_(scratch.allowed),
        steps_(scratch.steps) {}

  // Finds the least peak alone, or with a tolerance a bound of it. Leaves the parts with a split
  // within the peak and the larger margin that moved more tokens than necessary.
  EPLB_HOST_DEVICE LeastPeak<kWords> FindPeak(const Token* counts, const SplitMargins& margins) {
    counts_ = counts;
    Token tokens = 0;
    Set tight = Set::None();
    const SplitPeak fixed = PeakOfFixed(tokens, tight);
    for (bool first = true;; first = false) {
      LeastPeak<kWords> least{.peak = PeakOf(tight, tokens), .tight = tight};
      if (first && IsBelow(least.peak, fixed)) least = {.peak = fixed, .tight = GpuOfFixed(fixed)};
      const int32_t crowded = first ? ShareEqually(least.peak) : -1;
      if (crowded >= 0) {
        tight = HoldersOf(crowded);
      } else {
        if (FindSplit(least.peak, margins)) return least;
        tight = reached_;
        raised_ = true;
      }
      tokens = TokensOnlyIn(tight);
    }
  }

  // Leaves the parts with the split: none of a GPU's sums is above its share of the least peak,
  // plus the larger margin. If the lower bound was the peak and there is no slack, only tokens
  // above the peak moved from equal shares, along shortest paths. Otherwise no token can return
  // from a part that has more than equal shares to one that has less. With a tolerance the result
  // has the peak of this split, and `tight` proves that the least one is at most the tolerance
  // below.
  EPLB_HOST_DEVICE LeastPeak<kWords> Solve(const Token* counts, const SplitMargins& margins) {
    LeastPeak<kWords> least = FindPeak(counts, margins);
    if (raised_ || margins.slack > margins.tolerance) Return();
    if (margins.tolerance > 0) least.peak = ReachedPeak();
    return least;
  }

 private:
  EPLB_HOST_DEVICE static Token Smaller(Token a, Token b) { return a < b ? a : b; }
  EPLB_HOST_DEVICE static Token Larger(Token a, Token b) { return a > b ? a : b; }
  EPLB_HOST_DEVICE Token CountOfReplicated(int32_t index) const {
    return counts_[layer_.expert[index]];
  }
  EPLB_HOST_DEVICE Set HoldersOf(int32_t replicated) const {
    return holders_[layer_.expert_part[layer_.first_of_expert[replicated]]];
  }
  EPLB_HOST_DEVICE SplitPeak PeakOn(int32_t gpu, Token tokens) const {
    return {tokens, layer_.speed[gpu]};
  }

  // The most tokens of a GPU within the peak, and a margin above that. Bounded like the layer's
  // tokens, so that a sum over GPUs has 32 bits, too.
  EPLB_HOST_DEVICE Token Allowed(const SplitPeak& peak, int64_t margin, int32_t gpu) const {
    int64_t within = TokensWithin(peak, layer_.speed[gpu]);
    if (sizeof(Token) == 4 && within > kMaxNarrowTokens) within = kMaxNarrowTokens;
    return static_cast<Token>(within + within * margin / kSplitSlackUnit);
  }

  // Pushes tokens until all GPUs are within the peak and the tolerance, then allows the slack.
  // False if the GPUs of `reached_` hold too much.
  EPLB_HOST_DEVICE bool FindSplit(const SplitPeak& peak, const SplitMargins& margins) {
    for (int64_t margin = margins.tolerance;; margin = margins.slack) {
      Raise(peak, margin);
      while (!over_.empty()) {
        FindSteps();
        if (!FindLevels()) return false;
        PushPhase();
      }
      if (margin >= margins.slack) return true;
    }
  }

  // The peak of the GPU that has most with its fixed experts alone. Adds up the layer's tokens, and
  // the usable GPUs.
  EPLB_HOST_DEVICE SplitPeak PeakOfFixed(Token& tokens, Set& usable) {
    team_.ForEach(layer_.num_gpus, [this](int32_t gpu) { scratch_.fixed[gpu] = 0; });
    team_.ForEach(layer_.num_fixed, [&](int32_t i) {
      const Token count = counts_[layer_.fixed_expert[i]];
      team_.Add(scratch_.fixed[layer_.fixed_gpu[i]], count);
      tokens += count;
    });
    team_.ForEach(layer_.num_replicated,
                  [&](int32_t expert) { tokens += CountOfReplicated(expert); });
    SplitPeak most;
    team_.template ForEachGpu<kWords>(layer_.num_gpus, [&](int32_t gpu) {
      if (layer_.speed[gpu] == 0) return;
      usable.Add(gpu);
      if (layer_.equal_speeds) {
        most.tokens = Larger(static_cast<Token>(most.tokens), scratch_.fixed[gpu]);
      } else {
        most = LargerPeak(most, PeakOn(gpu, scratch_.fixed[gpu]));
      }
    });
    tokens = team_.Sum(tokens);
    usable = team_.Union(usable);
    return LargestOf(most);
  }

  EPLB_HOST_DEVICE Set GpuOfFixed(const SplitPeak& peak) const {
    Set one = Set::None();
    one.Add(team_.First(0, layer_.num_gpus, [&](int32_t gpu) {
      return layer_.speed[gpu] > 0 && !IsBelow(PeakOn(gpu, scratch_.fixed[gpu]), peak);
    }));
    return one;
  }

  EPLB_HOST_DEVICE SplitPeak LargestOf(const SplitPeak& peak) const {
    if (layer_.equal_speeds) return {team_.Max(static_cast<Token>(peak.tokens)), 1};
    return team_.Largest(peak);
  }

  // The parts at equal shares, and what GPUs have then. Returns the expert whose GPUs have most to
  // do above `peak` for the experts that only they hold, per GPU; of equal ones the first; -1:
  // none.
  EPLB_HOST_DEVICE int32_t ShareEqually(const SplitPeak& peak) {
    team_.ForEach(layer_.num_gpus,
                  [this](int32_t gpu) { scratch_.load[gpu] = scratch_.fixed[gpu]; });
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      const Token tokens = CountOfReplicated(expert);
      const auto replicas = static_cast<Token>(layer_.num_replicas[expert]);
      const Token each = Quotient(tokens, replicas);
      scratch_.each[expert] = each;
      scratch_.rest[expert] = tokens - each * replicas;
      scratch_.above[expert] = tokens;
      if constexpr (Team::kKeepsSteps) few_ = few_ || each == 0;
    });
    team_.ForEach(layer_.num_parts, [&](int32_t i) {
      const int32_t expert = layer_.expert_of[i];
      const int32_t gpu = layer_.expert_gpu[i];
      const auto slots = static_cast<Token>(layer_.expert_slots[i]);
      const Token left = scratch_.rest[expert] - static_cast<Token>(layer_.slots_before[i]);
      const Token equal = scratch_.each[expert] * slots + Larger(0, Smaller(left, slots));
      scratch_.part_tokens[layer_.expert_part[i]] = equal;
      scratch_.equal[layer_.expert_part[i]] = equal;
      team_.Add(scratch_.load[gpu], equal);
      const Token free = Allowed(peak, 0, gpu) - scratch_.fixed[gpu];
      team_.Add(scratch_.above[expert], static_cast<Token>(-free));
    });
    team_.ForEach(layer_.num_inner, [this](int32_t i) {
      team_.Add(scratch_.above[layer_.outer_expert[i]], CountOfReplicated(layer_.inner_expert[i]));
    });
    changed_ = Set::All(layer_.num_gpus);
    return MostAbove();
  }

  EPLB_HOST_DEVICE int32_t MostAbove() const {
    SplitPeak most;
    int32_t from_last = 0;  // so that the first of equal ones is the largest
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      if (scratch_.above[expert] <= 0) return;
      const int32_t num_gpus = layer_.first_of_expert[expert + 1] - layer_.first_of_expert[expert];
      const SplitPeak of_each{scratch_.above[expert], num_gpus};
      if (!IsBelow(most, of_each)) return;
      most = of_each;
      from_last = layer_.num_replicated - expert;
    });
    if (team_.Max(from_last) == 0) return -1;
    return layer_.num_replicated - team_.Max(IsBelow(most, team_.Largest(most)) ? 0 : from_last);
  }

  // The least peak whose tokens on `gpus` add up to `tokens`.
  EPLB_HOST_DEVICE SplitPeak PeakOf(const Set& gpus, Token tokens) const {
    int64_t speed = 0;
    team_.ForEachIn(gpus, [&](int32_t gpu) { speed += layer_.speed[gpu]; });
    speed = team_.Sum(speed);
    if (tokens == 0 || speed == 0) return {};
    if (layer_.equal_speeds) {
      return {Quotient(tokens + static_cast<Token>(speed) - 1, static_cast<Token>(speed)), 1};
    }
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
  EPLB_HOST_DEVICE Token TokensOnlyIn(const Set& gpus) const {
    Token tokens = 0;
    team_.ForEachIn(gpus, [&](int32_t gpu) { tokens += scratch_.fixed[gpu]; });
    team_.ForEach(layer_.num_replicated, [&](int32_t expert) {
      if (HoldersOf(expert).IsWithin(gpus)) tokens += CountOfReplicated(expert);
    });
    return team_.Sum(tokens);
  }

  // Allows each GPU its share of the peak, and the margin.
  EPLB_HOST_DEVICE void Raise(const SplitPeak& peak, int64_t margin) {
    Set over = Set::None();
    Set roomy = Set::None();
    team_.template ForEachGpu<kWords>(layer_.num_gpus, [&](int32_t gpu) {
      const Token allowed = Allowed(peak, margin, gpu);
      const Token has = moved_ ? allowed_.Mine(gpu) - room_.Mine(gpu) : scratch_.load[gpu];
      const Token room = allowed - has;
      allowed_.Set(gpu, allowed);
      room_.Set(gpu, room);
      over.AddIf(room < 0, gpu);
      roomy.AddIf(room > 0, gpu);
    });
    over_ = team_.Union(over);
    roomy_ = team_.Union(roomy);
    moved_ = true;
  }

  // The largest tokens / speed of a GPU.
  EPLB_HOST_DEVICE SplitPeak ReachedPeak() const {
    SplitPeak most;
    team_.template ForEachGpu<kWords>(layer_.num_gpus, [&](int32_t gpu) {
      if (layer_.speed[gpu] == 0) return;
      most = LargerPeak(most, PeakOn(gpu, allowed_.Mine(gpu) - room_.Mine(gpu)));
    });
    return LargestOf(most);
  }

  // The GPUs to which tokens of a GPU can move: those that hold the expert of a part with tokens.
  EPLB_HOST_DEVICE Set StepsOf(int32_t gpu) const {
    Set steps = Set::None();
    const int32_t end = layer_.first_on_gpu[gpu + 1];
    EPLB_ROLLED
    for (int32_t part = layer_.first_on_gpu[gpu]; part < end; ++part) {
      steps.AddAllIf(scratch_.part_tokens[part] > 0, holders_[part]);
    }
    return steps;
  }

  // Finds the steps of GPUs without room whose parts have changed, or of all GPUs at equal shares.
  EPLB_HOST_DEVICE void FindSteps() {
    if constexpr (Team::kKeepsSteps) {
      if (changed_.empty()) return;
      changed_ = Set::None();
      partial_ = few_ ? Set::All(layer_.num_gpus) : Set::None();
      for (int32_t gpu = 0; gpu < layer_.num_gpus; ++gpu) {
        steps_.Set(gpu, few_ ? StepsOf(gpu) : neighbours_[gpu]);
      }
    } else {
      Set stale = changed_;
      stale.RemoveAll(roomy_);
      changed_.KeepOnly(roomy_);
      team_.ForEachIn(stale, [this](int32_t gpu) { steps_.Set(gpu, StepsOf(gpu)); });
    }
  }

  // Searches breadth first from the GPUs with room, against the direction of tokens, until every
  // GPU above the peak has its distance. False if the GPUs of `reached_` have none, and hold too
  // much.
  EPLB_HOST_DEVICE bool FindLevels() {
    Set left = over_;
    Set level = roomy_;
    Set unknown = Set::All(layer_.num_gpus);
    unknown.RemoveAll(level);
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
    team_.Sync();
    return true;
  }

  // The GPUs of `unknown` from which tokens can move to `level`. One thread tests only neighbours
  // of the level that may have a part without tokens.
  EPLB_HOST_DEVICE Set NextLevel(const Set& level, const Set& unknown) const {
    const auto leads = [this, level](int32_t gpu) { return steps_.Mine(gpu).Meets(level); };
    if constexpr (!Team::kKeepsSteps) return team_.Where(unknown, leads);
    Set next = Set::None();
    level.Visit([&](int32_t gpu) { next.AddAll(neighbours_[gpu]); });
    next.KeepOnly(unknown);
    Set doubtful = next;
    doubtful.KeepOnly(partial_);
    if (doubtful.empty()) return next;
    next.RemoveAll(doubtful);
    next.AddAll(team_.Where(doubtful, leads));
    return next;
  }

  EPLB_HOST_DEVICE void FindReached(const Set& from) {
    Set level = from;
    reached_ = from;
    while (!level.empty()) {
      Set next = Set::None();
      team_.ForEachIn(level, [&](int32_t gpu) { next.AddAll(steps_.Mine(gpu)); });
      level = team_.Union(next);
      level.RemoveAll(reached_);
      reached_.AddAll(level);
    }
  }

  EPLB_HOST_DEVICE void PushPhase() {
    for (int32_t depth = 1; depth < num_levels_; ++depth) {
      Set sources = over_;
      sources.KeepOnly(scratch_.levels[depth]);
      for (int32_t gpu = sources.Lowest(); gpu >= 0; gpu = sources.Lowest()) {
        sources.Remove(gpu);
        PushFrom(gpu, depth);
      }
    }
  }

  // Pushes along shortest paths to room until the GPU has no overload or no path is left. A dead
  // end leaves its level, because it stays one for the rest of the phase. Tokens that pass a step
  // are moved when the path leaves it. No earlier step needs them, because levels only shrink
  // during a phase.
  EPLB_HOST_DEVICE void PushFrom(int32_t source, int32_t depth) {
    PathStep<Token> at{};  // its last step, whose parts are not chosen yet
    at.gpu = source;
    at.limit = -room_.Of(source);
    int32_t length = 0;
    pushed_ = 0;
    while (true) {
      const int32_t level = depth - length;
      if (level > 1 && BeginStep(scratch_.levels[level - 1], at, length)) {
        ++length;
        continue;
      }
      if (level == 1) FillRoom(at.gpu, at.limit);
      if (pushed_ < at.limit) RemoveFromLevel(level, at.gpu);
      if (length == 0) break;
      do {
        const int32_t to = at.gpu;
        at = scratch_.path[--length];
        team_.Sync();  // the next step of this length is written over it
        if (pushed_ > at.pushed_before) Move(at, to, pushed_ - at.pushed_before);
      } while (length > 0 && pushed_ == at.limit);
      if (pushed_ == at.limit) break;
    }
    room_.Increase(source, pushed_);
    if (pushed_ == at.limit) over_.Remove(source);
  }

  EPLB_HOST_DEVICE void RemoveFromLevel(int32_t level, int32_t gpu) {
    team_.Sync();  // all members have read what changes
    if (team_.leader()) scratch_.levels[level].Remove(gpu);
    team_.Sync();
  }

  // The first part of a GPU that has tokens and whose expert a GPU of `level` holds; `end`: none.
  EPLB_HOST_DEVICE int32_t FirstOut(int32_t begin, int32_t end, const Set& level) const {
    return team_.First(begin, end, [&](int32_t part) -> bool {
      const bool has_tokens = scratch_.part_tokens[part] > 0;
      if constexpr (kWords > 2) return has_tokens && holders_[part].Meets(level);
      return has_tokens & holders_[part].Meets(level);  // without a branch
    });
  }

  // The expert's next part after `out`, in a ring, on a GPU of `level`: its place among the parts
  // expert by expert. REQUIRES: there is one.
  EPLB_HOST_DEVICE int32_t NextWithin(int32_t out, const Set& level) const {
    const int32_t end = layer_.ring_first[out] + layer_.ring_size[out];
    const int32_t size = layer_.ring_size[out];
    const int32_t place = layer_.part_place[out];
    const auto wrapped = [=](int32_t i) { return place + i < end ? place + i : place + i - size; };
    if (size == 2) return wrapped(1);  // most experts
    return wrapped(
        team_.First(1, size, [&](int32_t i) { return level.Has(layer_.expert_gpu[wrapped(i)]); }));
  }

  EPLB_HOST_DEVICE bool MayLeadTo(int32_t gpu, const Set& level) const {
    if constexpr (Team::kKeepsSteps) return steps_.Mine(gpu).Meets(level);
    return true;
  }

  // Chooses the parts of the step `at` towards `level`, adds it to the path, and makes `at` the
  // step after it. False if no part leads there.
  EPLB_HOST_DEVICE bool BeginStep(const Set& level, PathStep<Token>& at, int32_t length) {
    if (!MayLeadTo(at.gpu, level)) return false;
    const int32_t end = layer_.first_on_gpu[at.gpu + 1];
    at.out = FirstOut(layer_.first_on_gpu[at.gpu], end, level);
    if (at.out == end) return false;
    const int32_t place = NextWithin(at.out, level);
    at.in = layer_.expert_part[place];
    at.pushed_before = pushed_;
    if (team_.leader()) scratch_.path[length] = at;
    team_.Sync();
    at.gpu = layer_.expert_gpu[place];
    at.limit = Smaller(at.limit, pushed_ + scratch_.part_tokens[at.out]);
    return true;
  }

  // Moves tokens from step.out to step.in.
  EPLB_HOST_DEVICE void MoveTokens(const PathStep<Token>& step, Token tokens) {
    const Token out = scratch_.part_tokens[step.out] - tokens;
    const Token in = scratch_.part_tokens[step.in] + tokens;
    team_.Sync();  // all members have read these tokens
    if (team_.leader()) {
      scratch_.part_tokens[step.out] = out;
      scratch_.part_tokens[step.in] = in;
    }
    team_.Sync();
  }

  // MoveTokens, and steps that follow.
  EPLB_HOST_DEVICE void Move(const PathStep<Token>& step, int32_t to, Token tokens) {
    MoveTokens(step, tokens);
    if constexpr (Team::kKeepsSteps) {
      steps_.values[to].AddAll(holders_[step.out]);
      if (scratch_.part_tokens[step.out] > 0) return;
      steps_.Set(step.gpu, StepsOf(step.gpu));
      partial_.Add(step.gpu);
    } else {
      changed_.Add(step.gpu);
      changed_.Add(to);
    }
  }

  // Pushes to the GPUs with room that the GPU's parts lead to, up to `limit` in all.
  EPLB_HOST_DEVICE void FillRoom(int32_t gpu, Token limit) {
    if (!MayLeadTo(gpu, roomy_)) return;
    const int32_t end = layer_.first_on_gpu[gpu + 1];
    PathStep<Token> step{};
    step.gpu = gpu;
    step.out = layer_.first_on_gpu[gpu];
    while (pushed_ < limit) {
      step.out = FirstOut(step.out, end, roomy_);
      if (step.out == end) return;
      const int32_t place = NextWithin(step.out, roomy_);
      const int32_t to = layer_.expert_gpu[place];
      step.in = layer_.expert_part[place];
      const Token room = room_.Of(to);
      const Token tokens = Smaller(Smaller(limit - pushed_, room), scratch_.part_tokens[step.out]);
      pushed_ += tokens;
      room_.Increase(to, -tokens);
      if (tokens == room) roomy_.Remove(to);
      Move(step, to, tokens);
    }
  }

  // Takes tokens back to GPUs with room whose parts have less than equal shares, from parts that
  // have more, until none can be.
  EPLB_HOST_DEVICE void Return() {
    const auto is_short = [this](int32_t part) {
      return scratch_.part_tokens[part] < scratch_.equal[part];
    };
    Set todo = team_.Where(roomy_, [&](int32_t gpu) {
      bool any = false;
      const int32_t end = layer_.first_on_gpu[gpu + 1];
      EPLB_ROLLED
      for (int32_t part = layer_.first_on_gpu[gpu]; part < end; ++part) any |= is_short(part);
      return any;
    });
    for (int32_t gpu = todo.Lowest(); gpu >= 0; gpu = todo.Lowest()) {
      todo.Remove(gpu);
      const int32_t end = layer_.first_on_gpu[gpu + 1];
      int32_t part = team_.First(layer_.first_on_gpu[gpu], end, is_short);
      while (part < end && room_.Of(gpu) > 0) {
        ReturnTo(gpu, part, todo);
        part = team_.First(part + 1, end, is_short);
      }
    }
  }

  EPLB_HOST_DEVICE void ReturnTo(int32_t gpu, int32_t part, Set& todo) {
    const int32_t end = layer_.ring_first[part] + layer_.ring_size[part];
    Token wanted = Smaller(room_.Of(gpu), scratch_.equal[part] - scratch_.part_tokens[part]);
    int32_t i = layer_.ring_first[part];
    while (wanted > 0) {
      i = team_.First(i, end, [this](int32_t place) {
        const int32_t other = layer_.expert_part[place];
        return scratch_.part_tokens[other] > scratch_.equal[other];
      });
      if (i == end) return;
      PathStep<Token> step{};
      step.out = layer_.expert_part[i];
      step.in = part;
      step.gpu = layer_.expert_gpu[i];
      const Token tokens =
          Smaller(wanted, scratch_.part_tokens[step.out] - scratch_.equal[step.out]);
      wanted -= tokens;
      room_.Increase(gpu, -tokens);
      room_.Increase(step.gpu, tokens);
      todo.Add(step.gpu);
      MoveTokens(step, tokens);
    }
  }

  const Layer& layer_;
  const Set* holders_;
  const Set* neighbours_;
  Scratch scratch_;
  Team team_;
  typename Team::template PerGpu<Token, kWords> room_;     // `allowed_` less what it has
  typename Team::template PerGpu<Token, kWords> allowed_;  // see Raise
  typename Team::template PerGpu<Set, kWords> steps_;      // see StepsOf
  const Token* counts_ = nullptr;
  Set over_ = Set::None();     // above the peak
  Set roomy_ = Set::None();    // below it
  Set reached_ = Set::None();  // see FindLevels
  Set changed_ = Set::None();  // GPUs whose steps may have changed
  Set partial_ = Set::None();  // GPUs that may have a part without tokens: see NextLevel
  Token pushed_ = 0;           // by PushFrom
  bool moved_ = false;         // GPUs have what `room_` and `allowed_` tell, no longer equal shares
  bool raised_ = false;        // the peak is above the lower bound that FindPeak began with
  bool few_ = false;           // an expert has fewer tokens than slots
  int32_t num_levels_ = 0;
};

}  // namespace eplb
