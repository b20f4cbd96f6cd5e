#include "placement/split/token_split.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {

namespace {

// Of the layer's heaviest expert, which is scaled to about 1: parts of a lighter one could be
// denormal, and it weighs nothing.
constexpr double kNegligible = 1e-280;
// 2^1000 leaves room for a sum of 2^20 experts.
constexpr int kMaxShareExponent = 1000;

std::vector<int32_t> GpuOfSlot(const Topology& topology) {
  std::vector<int32_t> gpus;
  gpus.reserve(static_cast<size_t>(topology.num_slots()));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    gpus.insert(gpus.end(), static_cast<size_t>(topology.SlotsOf(GpuId{gpu})), gpu);
  }
  return gpus;
}

absl::Status CheckUsable(const Placement& placement, const GpuSpeeds& speeds) {
  for (int32_t gpu = 0; gpu < speeds.num_gpus(); ++gpu) {
    if (speeds.Usable(GpuId{gpu}) || !placement.Holds(GpuId{gpu})) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", gpu, " is unusable, but the placement has experts on it"));
  }
  return absl::OkStatus();
}

// A power of two that brings the heaviest expert near 1: scaling is exact, and no sum over- and no
// quotient underflows.
double Scale(const Eigen::Ref<const Eigen::RowVectorXd>& tokens) {
  int exponent = 0;
  (void)std::frexp(tokens.maxCoeff(), &exponent);
  return std::ldexp(1.0, std::clamp(-exponent, -kMaxShareExponent, kMaxShareExponent));
}

}  // namespace

RealMatrix EqualShares(const Placement& placement) {
  const IndexMatrix& experts = placement.physical_to_logical_map();
  RealMatrix shares = RealMatrix::Zero(experts.rows(), experts.cols());
  for (Eigen::Index layer = 0; layer < experts.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < experts.cols(); ++slot) {
      const int32_t expert = experts(layer, slot);
      if (expert < 0) continue;
      shares(layer, slot) = 1.0 / placement.logical_replica_count()(layer, expert);
    }
  }
  return shares;
}

absl::StatusOr<TokenSplit> SplitOptimally(const Load& load, const Placement& placement,
                                          const GpuSpeeds* speeds) {
  const Topology& topology = placement.topology();
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the placement has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const GpuSpeeds& used = speeds == nullptr ? equal : *speeds;
  if (used.num_gpus() != topology.num_gpus()) {
    return absl::InvalidArgumentError(absl::StrCat(
        used.num_gpus(), " GPU speeds, the placement has ", topology.num_gpus(), " GPUs"));
  }
  EPLB_RETURN_IF_ERROR(CheckUsable(placement, used));

  const RealMatrix tokens = load.ToDouble();
  TokenSplit split{.shares = EqualShares(placement), .max_gpu_load = {}};
  LayerFlow flow({used.speeds().begin(), used.speeds().end()}, GpuOfSlot(topology));
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const double scale = Scale(tokens.row(layer).matrix());
    flow.Start();
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const double scaled = tokens(layer, expert) * scale;
      if (scaled < kNegligible) continue;
      flow.Add(scaled, placement.ReplicasOf(LayerId{layer}, ExpertId{expert}));
    }
    split.max_gpu_load.push_back(flow.Minimise() / scale);
    if (!std::isfinite(split.max_gpu_load.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, ": load / speed is above the range of double"));
    }
    flow.WriteShares({&split.shares(layer, 0), static_cast<size_t>(topology.num_slots())});
  }
  return split;
}

namespace {

// A GPU load this far above the trial maximum is rounding, not overload; the sums that lead to it
// have some 10^1..10^3 terms of relative error 1e-16.
constexpr double kLoadTolerance = 1e-14;
// A cut must raise the trial by more than this to be a new one.
constexpr double kRatioTolerance = 1e-13;
constexpr size_t kNone = SIZE_MAX;

size_t At(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

LayerFlow::LayerFlow(std::vector<double> speeds, std::vector<int32_t> gpu_of_slot, Search search)
    : speeds_(std::move(speeds)),
      gpu_of_slot_(std::move(gpu_of_slot)),
      use_masks_(search == Search::kFastest && speeds_.size() <= 64),
      fixed_(speeds_.size()),
      part_on_gpu_(speeds_.size(), kNone),
      first_on_gpu_(speeds_.size() + 1),
      room_(speeds_.size()),
      tolerance_(speeds_.size()),
      gpu_level_(speeds_.size()),
      next_of_gpu_(speeds_.size()),
      reach_(use_masks_ ? speeds_.size() : 0) {
  Start();
}

void LayerFlow::Start() {
  std::fill(fixed_.begin(), fixed_.end(), 0.0);
  parts_.clear();
  part_of_slot_.clear();
  experts_.assign(1, {0, 0, 0, {}});
}

void LayerFlow::Add(double tokens, std::span<const int32_t> slots) {
  if (slots.size() == 1) {
    fixed_[At(gpu_of_slot_[At(slots.front())])] += tokens;
    return;
  }
  const size_t first = parts_.size();
  const auto expert = static_cast<int32_t>(experts_.size() - 1);
  const double per_slot = tokens / static_cast<double>(slots.size());
  for (const int32_t slot : slots) {
    const int32_t gpu = gpu_of_slot_[At(slot)];
    size_t& part = part_on_gpu_[At(gpu)];
    // The table is not cleared between experts: an entry counts if it names a part of this one.
    if (part >= parts_.size() || part < first || parts_[part].gpu != gpu) {
      part = parts_.size();
      parts_.push_back({.gpu = gpu, .expert = expert, .equal = 0, .tokens = 0});
    }
    parts_[part].equal += per_slot;
    part_of_slot_.push_back(part);
  }
  if (parts_.size() - first == 1) {
    fixed_[At(parts_.back().gpu)] += tokens;
    parts_.pop_back();
    part_of_slot_.resize(part_of_slot_.size() - slots.size());
    return;
  }
  experts_.back().tokens = tokens;
  experts_.back().slots = slots;
  experts_.push_back({0, parts_.size(), part_of_slot_.size(), {}});
}

std::span<LayerFlow::Part> LayerFlow::PartsOf(size_t expert) {
  const size_t first = experts_[expert].first_part;
  return {&parts_[first], experts_[expert + 1].first_part - first};
}

std::span<const LayerFlow::Part> LayerFlow::PartsOf(size_t expert) const {
  const size_t first = experts_[expert].first_part;
  return {&parts_[first], experts_[expert + 1].first_part - first};
}

double LayerFlow::LeastImaginable() const {
  double tokens = 0;
  double speed = 0;
  double peak = 0;
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    tokens += fixed_[gpu];
    speed += speeds_[gpu];
    if (fixed_[gpu] > 0) peak = std::max(peak, fixed_[gpu] / speeds_[gpu]);
  }
  for (const Expert& expert : experts_) tokens += expert.tokens;
  return tokens > 0 ? std::max(peak, tokens / speed) : 0;
}

void LayerFlow::IndexPartsByGpu() {
  std::fill(first_on_gpu_.begin(), first_on_gpu_.end(), size_t{0});
  for (const Part& part : parts_) ++first_on_gpu_[At(part.gpu) + 1];
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    first_on_gpu_[gpu + 1] += first_on_gpu_[gpu];
    next_of_gpu_[gpu] = first_on_gpu_[gpu];
  }
  gpu_parts_.resize(parts_.size());
  for (size_t part = 0; part < parts_.size(); ++part) {
    gpu_parts_[next_of_gpu_[At(parts_[part].gpu)]++] = part;
  }
}

void LayerFlow::SpreadEqually() {
  for (Part& part : parts_) part.tokens = part.equal;
}

double LayerFlow::Minimise() {
  IndexPartsByGpu();
  SpreadEqually();
  double peak = LeastImaginable();
  bool raised = false;
  for (size_t step = 0; step <= num_gpus() && !Push(peak); ++step) {
    const double ratio = RatioOfReached();
    if (!(ratio > peak * (1 + kRatioTolerance))) break;  // what is left is rounding
    peak = ratio;
    raised = true;
  }
  if (raised) {
    // Trials below the least maximum moved more than it asks for.
    SpreadEqually();
    (void)Push(peak);
  }
  room_ = fixed_;
  for (const Part& part : parts_) room_[At(part.gpu)] += part.tokens;
  double largest = 0;
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    if (room_[gpu] > 0) largest = std::max(largest, room_[gpu] / speeds_[gpu]);
  }
  return largest;
}

bool LayerFlow::Push(double peak) {
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    const double most = peak * speeds_[gpu];
    room_[gpu] = most - fixed_[gpu];
    tolerance_[gpu] = most * kLoadTolerance;
  }
  for (const Part& part : parts_) room_[At(part.gpu)] -= part.tokens;
  return use_masks_ ? PushByMasks() : PushByLists();
}

bool LayerFlow::PushByLists() {
  // Every phase lengthens the shortest path, which visits no GPU twice.
  for (size_t phase = 0; phase <= num_gpus() && FindLevels(); ++phase) {
    for (size_t gpu = 0; gpu < num_gpus(); ++gpu) next_of_gpu_[gpu] = first_on_gpu_[gpu];
    next_of_expert_.resize(experts_.size());
    for (size_t expert = 0; expert < experts_.size(); ++expert) {
      next_of_expert_[expert] = experts_[expert].first_part;
    }
    for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
      while (Overloaded(gpu) && PushFrom(gpu)) {
      }
    }
  }
  return queue_.empty();
}

// Breadth first from the overloaded GPUs; stops behind the level of the first GPU with room. False
// when none is reached; `queue_` is empty when there is no overload.
bool LayerFlow::FindLevels() {
  std::fill(gpu_level_.begin(), gpu_level_.end(), -1);
  expert_level_.assign(experts_.size(), -1);
  queue_.clear();
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    if (!Overloaded(gpu)) continue;
    gpu_level_[gpu] = 0;
    queue_.push_back(gpu);
  }
  int32_t last_level = INT32_MAX;
  for (size_t head = 0; head < queue_.size(); ++head) {
    const size_t gpu = queue_[head];
    const int32_t level = gpu_level_[gpu];
    if (level >= last_level) break;
    for (size_t i = first_on_gpu_[gpu]; i < first_on_gpu_[gpu + 1]; ++i) {
      const Part& part = parts_[gpu_parts_[i]];
      if (part.tokens <= 0 || expert_level_[At(part.expert)] >= 0) continue;
      expert_level_[At(part.expert)] = level;
      for (const Part& other : PartsOf(At(part.expert))) {
        int32_t& other_level = gpu_level_[At(other.gpu)];
        if (other_level >= 0) continue;
        other_level = level + 1;
        queue_.push_back(At(other.gpu));
        if (room_[At(other.gpu)] > 0) last_level = level + 1;
      }
    }
  }
  return last_level != INT32_MAX;
}

// Moves tokens from `source` along one path of rising levels; false when there is none left.
bool LayerFlow::PushFrom(size_t source) {
  path_.clear();
  size_t gpu = source;
  while (room_[gpu] <= 0) {
    Step step{};
    if (NextStep(gpu, step)) {
      path_.push_back(step);
      gpu = At(parts_[step.in].gpu);
    } else if (path_.empty()) {
      return false;
    } else {
      // A dead end stays one for the rest of the phase.
      const Step& back = path_.back();
      ++next_of_expert_[At(parts_[back.in].expert)];
      gpu = At(parts_[back.out].gpu);
      path_.pop_back();
    }
  }
  MoveAlongPath(source, gpu);
  return true;
}

bool LayerFlow::NextStep(size_t gpu, Step& step) {
  const int32_t level = gpu_level_[gpu];
  for (size_t& i = next_of_gpu_[gpu]; i < first_on_gpu_[gpu + 1]; ++i) {
    const size_t out = gpu_parts_[i];
    const size_t expert = At(parts_[out].expert);
    if (parts_[out].tokens <= 0 || expert_level_[expert] != level) continue;
    const size_t end = experts_[expert + 1].first_part;
    for (size_t& in = next_of_expert_[expert]; in < end; ++in) {
      if (gpu_level_[At(parts_[in].gpu)] != level + 1) continue;
      step = {.out = out, .in = in};
      return true;
    }
  }
  return false;
}

// The smallest of overload, room and tokens on the way becomes exactly 0, which bounds the number
// of paths whatever the rounding.
void LayerFlow::MoveAlongPath(size_t source, size_t sink) {
  double tokens = std::min(-room_[source], room_[sink]);
  for (const Step& step : path_) tokens = std::min(tokens, parts_[step.out].tokens);
  for (const Step& step : path_) {
    parts_[step.out].tokens -= tokens;
    parts_[step.in].tokens += tokens;
  }
  room_[source] += tokens;
  room_[sink] -= tokens;
}

// Tokens that the reached GPUs cannot give away, per speed. An expert with tokens on a reached GPU
// has reached all its GPUs.
double LayerFlow::RatioOfReached() const {
  double tokens = 0;
  double speed = 0;
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    if (gpu_level_[gpu] < 0) continue;
    tokens += fixed_[gpu];
    speed += speeds_[gpu];
  }
  for (size_t expert = 0; expert + 1 < experts_.size(); ++expert) {
    if (expert_level_[expert] >= 0) tokens += experts_[expert].tokens;
  }
  return tokens / speed;
}

void LayerFlow::WriteShares(std::span<double> shares) const {
  for (size_t expert = 0; expert + 1 < experts_.size(); ++expert) {
    const std::span<const Part> parts = PartsOf(expert);
    if (std::all_of(parts.begin(), parts.end(),
                    [](const Part& part) { return part.tokens == part.equal; })) {
      continue;
    }
    double sum = 0;
    for (const Part& part : parts) sum += part.tokens;
    const auto num_slots = static_cast<double>(experts_[expert].slots.size());
    const double per_slot = experts_[expert].tokens / num_slots;
    for (size_t i = 0; i < experts_[expert].slots.size(); ++i) {
      const Part& part = parts_[part_of_slot_[experts_[expert].first_slot + i]];
      // part.equal / per_slot is the number of slots on this GPU.
      shares[At(experts_[expert].slots[i])] = part.tokens / sum * (per_slot / part.equal);
    }
  }
}

// LayerFlow's search for at most 64 GPUs: Dinic's phases on sets of GPUs, a bit each.

namespace {

size_t Place(int32_t i) { return static_cast<size_t>(i); }

uint64_t Bit(size_t gpu) { return uint64_t{1} << gpu; }

size_t Lowest(uint64_t gpus) { return static_cast<size_t>(std::countr_zero(gpus)); }

}  // namespace

bool LayerFlow::PushByMasks() {
  holders_.assign(experts_.size(), 0);
  for (const Part& part : parts_) holders_[Place(part.expert)] |= Bit(Place(part.gpu));
  uint64_t overloaded = 0;
  uint64_t roomy = 0;
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    FindReach(gpu);
    if (Overloaded(gpu)) overloaded |= Bit(gpu);
    if (room_[gpu] > 0) roomy |= Bit(gpu);
  }
  // Every phase lengthens the shortest path, which visits no GPU twice.
  for (size_t phase = 0; phase <= num_gpus() && overloaded != 0; ++phase) {
    uint64_t reached = overloaded;
    levels_.assign(1, overloaded);
    while ((levels_.back() & roomy) == 0) {
      uint64_t next = 0;
      for (uint64_t rest = levels_.back(); rest != 0; rest &= rest - 1) {
        next |= reach_[Lowest(rest)];
      }
      next &= ~reached;
      if (next == 0) {
        MarkReached(reached);
        return false;
      }
      reached |= next;
      levels_.push_back(next);
    }
    levels_.back() &= roomy;
    for (uint64_t rest = overloaded; rest != 0; rest &= rest - 1) {
      const size_t source = Lowest(rest);
      PushFromByMasks(source, roomy);
      if (!Overloaded(source)) overloaded &= ~Bit(source);
    }
  }
  return overloaded == 0;
}

void LayerFlow::FindReach(size_t gpu) {
  uint64_t reach = 0;
  for (size_t i = first_on_gpu_[gpu]; i < first_on_gpu_[gpu + 1]; ++i) {
    const Part& part = parts_[gpu_parts_[i]];
    if (part.tokens > 0) reach |= holders_[Place(part.expert)];
  }
  reach_[gpu] = reach;
}

// An expert with tokens on a reached GPU has all its GPUs reached.
void LayerFlow::MarkReached(uint64_t reached) {
  for (size_t gpu = 0; gpu < num_gpus(); ++gpu) {
    gpu_level_[gpu] = (reached & Bit(gpu)) != 0 ? 0 : -1;
  }
  expert_level_.resize(experts_.size());
  for (size_t expert = 0; expert < experts_.size(); ++expert) {
    expert_level_[expert] = (holders_[expert] & ~reached) == 0 ? 0 : -1;
  }
}

// Pushes from `source` along paths of rising levels until it has no overload or no path is left.
// `levels_` loses the GPUs that turn out to be dead ends, which they stay for the rest of the
// phase.
void LayerFlow::PushFromByMasks(size_t source, uint64_t& roomy) {
  gpu_path_.assign(1, source);
  while (Overloaded(source)) {
    const size_t gpu = gpu_path_.back();
    if (gpu_path_.size() == levels_.size()) {
      MoveAlongGpus(roomy);
      gpu_path_.resize(1);
      continue;
    }
    const uint64_t next = reach_[gpu] & levels_[gpu_path_.size()];
    if (next != 0) {
      gpu_path_.push_back(Lowest(next));
      continue;
    }
    levels_[gpu_path_.size() - 1] &= ~Bit(gpu);
    gpu_path_.pop_back();
    if (gpu_path_.empty()) return;
  }
}

// Of the experts with tokens on `from` that `to` holds, the one with most. REQUIRES: there is one.
LayerFlow::Step LayerFlow::LargestStep(size_t from, size_t to) const {
  Step step{};
  double most = 0;
  for (size_t i = first_on_gpu_[from]; i < first_on_gpu_[from + 1]; ++i) {
    const Part& part = parts_[gpu_parts_[i]];
    if (part.tokens <= most || (holders_[Place(part.expert)] & Bit(to)) == 0) continue;
    most = part.tokens;
    step.out = gpu_parts_[i];
  }
  step.in = experts_[Place(parts_[step.out].expert)].first_part;
  while (Place(parts_[step.in].gpu) != to) ++step.in;
  return step;
}

// As MoveAlongPath; keeps `reach_`, `roomy` and the last level up to date.
void LayerFlow::MoveAlongGpus(uint64_t& roomy) {
  path_.clear();
  for (size_t i = 1; i < gpu_path_.size(); ++i) {
    path_.push_back(LargestStep(gpu_path_[i - 1], gpu_path_[i]));
  }
  const size_t sink = gpu_path_.back();
  MoveAlongPath(gpu_path_.front(), sink);
  for (size_t i = 0; i < path_.size(); ++i) {
    const Part& out = parts_[path_[i].out];
    if (out.tokens <= 0) FindReach(gpu_path_[i]);
    reach_[gpu_path_[i + 1]] |= holders_[Place(out.expert)];
  }
  if (room_[sink] <= 0) {
    roomy &= ~Bit(sink);
    levels_.back() &= ~Bit(sink);
  }
}

}  // namespace eplb
