#include "placement/layer_flow.h"

#include <algorithm>
#include <utility>

namespace eplb {
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

}  // namespace eplb
