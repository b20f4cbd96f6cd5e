#include "placement/align.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/status_macros.h"

namespace eplb {
namespace {

// A slot of one GPU, sorted so that equal experts stand together, the preferred one first.
struct Held {
  int32_t expert;
  bool is_other;  // false for the slot that its expert prefers
  int32_t slot;

  friend bool operator<(const Held& a, const Held& b) {
    return std::tie(a.expert, a.is_other, a.slot) < std::tie(b.expert, b.is_other, b.slot);
  }
};

// One layer while it is relabelled; the scratch is kept between layers.
class LayerAligner {
 public:
  LayerAligner(const Placement& previous, const Placement& next)
      : previous_(previous),
        next_(next),
        moved_to_(static_cast<size_t>(next.topology().num_slots())) {}

  // Writes row `layer` of slots and ranks.
  void Align(LayerId layer, IndexMatrix& slots, IndexMatrix& ranks) {
    const Topology& topology = next_.topology();
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) RelabelGpu(layer, GpuId{gpu}, slots);
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      RankReplicas(layer, ExpertId{expert}, slots, ranks);
    }
  }

 private:
  // Matches what the GPU held with what it is to hold, expert by expert; what is left over on
  // either side are the freed slots and the arrivals.
  void RelabelGpu(LayerId layer, GpuId gpu, IndexMatrix& slots) {
    const int32_t first = next_.topology().FirstSlotOf(gpu).value;
    const int32_t end = first + next_.topology().SlotsOf(gpu);
    CollectHeld(layer, first, end);
    freed_.clear();
    arrivals_.clear();
    size_t before = 0;
    size_t after = 0;
    while (before < before_.size() || after < after_.size()) {
      const bool only_before =
          after == after_.size() ||
          (before < before_.size() && before_[before].expert < after_[after].expert);
      if (only_before) {
        freed_.push_back(before_[before++].slot);
      } else if (before == before_.size() || after_[after].expert < before_[before].expert) {
        arrivals_.push_back(after_[after++].slot);
      } else {
        Put(layer, after_[after++].slot, before_[before++].slot, slots);
      }
    }
    std::sort(freed_.begin(), freed_.end());
    std::sort(arrivals_.begin(), arrivals_.end());
    for (size_t i = 0; i < freed_.size(); ++i) Put(layer, arrivals_[i], freed_[i], slots);
  }

  // Before: the slot of the previous primary is kept first. After: of an expert with several slots,
  // the one that is in place already counts as the survivor, so that aligning twice changes
  // nothing.
  void CollectHeld(LayerId layer, int32_t first, int32_t end) {
    before_.clear();
    after_.clear();
    for (int32_t slot = first; slot < end; ++slot) {
      const ExpertId old_expert = previous_.ExpertIn(layer, SlotId{slot});
      const ExpertId new_expert = next_.ExpertIn(layer, SlotId{slot});
      const bool was_primary =
          old_expert.value >= 0 && previous_.PrimaryOf(layer, old_expert) == SlotId{slot};
      before_.push_back({old_expert.value, !was_primary, slot});
      after_.push_back({new_expert.value, true, slot});
    }
    std::sort(before_.begin(), before_.end());
    std::sort(after_.begin(), after_.end());
    PreferSlotsInPlace();
  }

  void PreferSlotsInPlace() {
    size_t before = 0;
    for (size_t after = 0; after < after_.size();) {
      const int32_t expert = after_[after].expert;
      size_t count = 0;
      while (after + count < after_.size() && after_[after + count].expert == expert) ++count;
      while (before < before_.size() && before_[before].expert < expert) ++before;
      for (size_t kept = before;
           kept < before_.size() && kept < before + count && before_[kept].expert == expert;
           ++kept) {
        for (size_t i = after; i < after + count; ++i) {
          if (after_[i].slot == before_[kept].slot) after_[i].is_other = false;
        }
      }
      std::sort(after_.begin() + static_cast<std::ptrdiff_t>(after),
                after_.begin() + static_cast<std::ptrdiff_t>(after + count));
      after += count;
    }
  }

  void Put(LayerId layer, int32_t next_slot, int32_t slot, IndexMatrix& slots) {
    slots(layer.value, slot) = next_.ExpertIn(layer, SlotId{next_slot}).value;
    moved_to_[static_cast<size_t>(next_slot)] = slot;
  }

  void RankReplicas(LayerId layer, ExpertId expert, const IndexMatrix& slots, IndexMatrix& ranks) {
    replicas_.clear();
    for (const int32_t slot : next_.ReplicasOf(layer, expert)) {
      replicas_.push_back(moved_to_[static_cast<size_t>(slot)]);
    }
    const int32_t primary_of_next = replicas_.front();
    std::sort(replicas_.begin(), replicas_.end());
    int32_t primary = previous_.PrimaryOf(layer, expert).value;
    if (slots(layer.value, primary) != expert.value) {
      const auto survivor = std::ranges::find_if(replicas_, [&](int32_t slot) {
        return previous_.ExpertIn(layer, SlotId{slot}) == expert;
      });
      primary = survivor == replicas_.end() ? primary_of_next : *survivor;
    }
    int32_t rank = 1;
    for (const int32_t slot : replicas_) ranks(layer.value, slot) = slot == primary ? 0 : rank++;
  }

  const Placement& previous_;
  const Placement& next_;
  std::vector<int32_t> moved_to_;  // [S], slot of `next` to its slot in the result
  std::vector<Held> before_;
  std::vector<Held> after_;
  std::vector<int32_t> freed_;
  std::vector<int32_t> arrivals_;
  std::vector<int32_t> replicas_;
};

}  // namespace

absl::StatusOr<Placement> Align(const Placement& previous, const Placement& next) {
  EPLB_RETURN_IF_ERROR(CheckSameTopology("previous", previous.topology(), "next", next.topology()));
  IndexMatrix slots = next.physical_to_logical_map();
  IndexMatrix ranks = next.replica_rank();
  LayerAligner aligner(previous, next);
  for (int32_t layer = 0; layer < next.topology().num_layers(); ++layer) {
    aligner.Align(LayerId{layer}, slots, ranks);
  }
  return Placement::FromSlotsAndRanks(next.topology(), slots, ranks);
}

}  // namespace eplb
