#include "placement/layer_path.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace eplb {
namespace {

bool HasUnusable(const LayerPlacement& layer) {
  const std::vector<int32_t>& slots = layer.physical_to_logical;
  return std::ranges::find(slots, -1) != slots.end();
}

}  // namespace

LayerPath::LayerPath(LayerPlacement before, LayerPlacement after, const Topology& topology)
    : topology_(topology),
      before_(std::move(before)),
      after_(std::move(after)),
      now_(before_.physical_to_logical),
      count_(AsIndex(topology.num_experts())),
      wrong_(AsIndex(topology.num_experts())),
      moved_(AsIndex(topology.num_experts())) {
  if (HasUnusable(before_) || HasUnusable(after_)) {
    num_wrong_ = 1;
    return;
  }
  for (size_t slot = 0; slot < now_.size(); ++slot) {
    const auto expert = AsIndex(now_[slot]);
    ++count_[expert];
    if (now_[slot] == after_.physical_to_logical[slot]) continue;
    wrong_[expert].push_back(static_cast<int32_t>(slot));
    ++num_wrong_;
  }
  FindReordered();
}

void LayerPath::FindReordered() {
  std::vector<bool> moves(count_.size());
  std::vector<bool> differs(count_.size());
  for (size_t slot = 0; slot < now_.size(); ++slot) {
    const int32_t next = after_.physical_to_logical[slot];
    if (now_[slot] != next) {
      moves[AsIndex(now_[slot])] = true;
      moves[AsIndex(next)] = true;
    } else if (before_.replica_rank[slot] != after_.replica_rank[slot]) {
      differs[AsIndex(next)] = true;
    }
  }
  for (size_t expert = 0; expert < moves.size(); ++expert) {
    if (differs[expert] && !moves[expert]) reordered_.push_back(static_cast<int32_t>(expert));
  }
}

bool LayerPath::HasRoom(int32_t slot) const {
  return is_written_[AsIndex(slot)] ||
         written_[AsIndex(topology_.GpuOf(SlotId{slot}).value)] < rows_;
}

void LayerPath::Write(int32_t slot, int32_t expert) {
  int32_t& held = now_[AsIndex(slot)];
  std::vector<int32_t>& wrong = wrong_[AsIndex(held)];
  wrong.erase(std::ranges::find(wrong, slot));
  --num_wrong_;
  --count_[AsIndex(held)];
  ++count_[AsIndex(expert)];
  moved_[AsIndex(held)] = true;
  moved_[AsIndex(expert)] = true;
  held = expert;
  if (expert != after_.physical_to_logical[AsIndex(slot)]) {
    wrong_[AsIndex(expert)].push_back(slot);
    ++num_wrong_;
  }
  if (is_written_[AsIndex(slot)]) return;
  is_written_[AsIndex(slot)] = true;
  ++written_[AsIndex(topology_.GpuOf(SlotId{slot}).value)];
}

bool LayerPath::Overwrite(int32_t slot, bool force) {
  const bool is_spare = count_[AsIndex(now_[AsIndex(slot)])] > 1;
  if (!is_spare || !(force || HasRoom(slot))) return false;
  Write(slot, after_.physical_to_logical[AsIndex(slot)]);
  return true;
}

bool LayerPath::HaveRoom(int32_t slot, int32_t other) const {
  const bool same_gpu = topology_.GpuOf(SlotId{slot}) == topology_.GpuOf(SlotId{other});
  if (!same_gpu || is_written_[AsIndex(slot)] || is_written_[AsIndex(other)]) {
    return HasRoom(slot) && HasRoom(other);
  }
  return written_[AsIndex(topology_.GpuOf(SlotId{slot}).value)] + 2 <= rows_;
}

int32_t LayerPath::Exchange(int32_t slot, bool force) {
  const int32_t held = now_[AsIndex(slot)];
  const int32_t next = after_.physical_to_logical[AsIndex(slot)];
  const std::vector<int32_t>& others = wrong_[AsIndex(next)];
  const auto found =
      std::ranges::find_if(others, [&](int32_t other) { return force || HaveRoom(slot, other); });
  if (found == others.end()) return -1;
  const int32_t other = *found;
  Write(slot, next);
  Write(other, held);
  return other;
}

bool LayerPath::TakeSteps(bool force) {
  bool any = false;
  for (int32_t first = 0; first < static_cast<int32_t>(now_.size()); ++first) {
    // The slot that an exchange leaves wrong is next: it is written in this part already.
    int32_t slot = first;
    while (slot >= 0 && now_[AsIndex(slot)] != after_.physical_to_logical[AsIndex(slot)]) {
      const bool overwritten = Overwrite(slot, force);
      if (!overwritten) slot = Exchange(slot, force);
      if (slot < 0) break;
      any = true;
      if (force) return true;
    }
  }
  return any;
}

void LayerPath::Reorder(bool force) {
  std::erase_if(reordered_, [&](int32_t expert) {
    for (size_t slot = 0; slot < now_.size(); ++slot) {
      const bool is_primary = now_[slot] == expert && after_.replica_rank[slot] == 0;
      if (!is_primary) continue;
      const auto place = static_cast<int32_t>(slot);
      int64_t& written = written_[AsIndex(topology_.GpuOf(SlotId{place}).value)];
      if (written >= rows_ && !force) return false;
      ++written;
    }
    force = false;
    moved_[AsIndex(expert)] = true;
    return true;
  });
}

LayerPlacement LayerPath::Take(int64_t rows) {
  if (HasUnusable(before_) || HasUnusable(after_)) {
    num_wrong_ = 0;
    return after_;
  }
  rows_ = rows;
  written_.assign(AsIndex(topology_.num_gpus()), 0);
  is_written_.assign(now_.size(), false);
  bool any = false;
  while (TakeSteps(/*force=*/false)) any = true;
  if (!any && num_wrong_ > 0) any = TakeSteps(/*force=*/true);
  Reorder(/*force=*/!any);
  return Now();
}

LayerPlacement LayerPath::Now() const {
  if (done()) return after_;
  LayerPlacement layer = before_;
  layer.physical_to_logical = now_;
  // By expert: whether the slot is still to be left, its rank among those alike, and the slot.
  std::vector<std::vector<std::tuple<bool, int32_t, size_t>>> order(count_.size());
  for (size_t slot = 0; slot < now_.size(); ++slot) {
    const int32_t expert = now_[slot];
    if (!moved_[AsIndex(expert)]) continue;
    const bool leaves = expert != after_.physical_to_logical[slot];
    const int32_t rank = (leaves ? before_ : after_).replica_rank[slot];
    order[AsIndex(expert)].emplace_back(leaves, rank, slot);
  }
  for (auto& replicas : order) {
    std::ranges::sort(replicas);
    for (size_t rank = 0; rank < replicas.size(); ++rank) {
      layer.replica_rank[std::get<2>(replicas[rank])] = static_cast<int32_t>(rank);
    }
  }
  return layer;
}

}  // namespace eplb
