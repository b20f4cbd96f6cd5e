// LayerFlow's search for at most 64 GPUs: Dinic's phases on sets of GPUs, a bit each.
#include <algorithm>
#include <bit>

#include "placement/layer_flow.h"

namespace eplb {
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
