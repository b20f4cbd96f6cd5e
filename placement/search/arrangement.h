// A domain's slots while they are searched: replica counts, units and GPU loads kept up to date.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Which expert each slot holds, -1 while it is empty. Slots are numbered GPU by GPU. The unit of an
// expert is what each of its replicas carries: load / replicas. Threads: one at a time.
class Arrangement {
 public:
  static constexpr int32_t kEmpty = -1;

  // REQUIRES: `domain` outlives this.
  explicit Arrangement(const Domain& domain);

  const Domain& domain() const { return *domain_; }
  int32_t num_gpus() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t num_slots() const { return static_cast<int32_t>(expert_.size()); }
  std::span<const int32_t> experts() const { return expert_; }  // [S]
  std::span<const int32_t> counts() const { return count_; }    // [n]

  int32_t first_slot(int32_t gpu) const { return first_[AsIndex(gpu)]; }
  int32_t end_slot(int32_t gpu) const { return first_[AsIndex(gpu) + 1]; }
  int32_t gpu_of(int32_t slot) const { return gpu_of_[AsIndex(slot)]; }
  int32_t expert_in(int32_t slot) const { return expert_[AsIndex(slot)]; }
  int32_t count(int32_t expert) const { return count_[AsIndex(expert)]; }
  double unit(int32_t expert) const { return unit_[AsIndex(expert)]; }
  // The unit of what a slot holds.
  double unit_in(int32_t slot) const { return slot_unit_[AsIndex(slot)]; }
  // Tokens of a GPU and its load, tokens / speed.
  double tokens(int32_t gpu) const { return tokens_[AsIndex(gpu)]; }
  double inverse_speed(int32_t gpu) const { return inverse_speed_[AsIndex(gpu)]; }
  double load(int32_t gpu) const { return tokens(gpu) * inverse_speed(gpu); }
  int32_t HottestGpu() const;
  double MaxLoad() const { return load(HottestGpu()); }
  // The first slot of an expert and the one after `slot`, kEmpty at the end; in no special order.
  int32_t FirstOf(int32_t expert) const { return head_[AsIndex(expert)]; }
  int32_t NextOf(int32_t slot) const { return next_[AsIndex(slot)]; }

  int32_t CopiesOn(int32_t gpu, int32_t expert) const;
  // An expert may get one more copy on a GPU, or lose one, within the limits of the domain.
  bool MayArrive(int32_t gpu, int32_t expert) const;
  bool MayLeave(int32_t gpu, int32_t expert) const;
  // The experts of two slots on different GPUs may change places.
  bool MaySwap(int32_t a, int32_t b) const;
  // The expert of a slot can do without this replica.
  bool MaySpare(int32_t slot) const;
  // A slot may give up its expert for another replica of `expert`.
  bool MayReplace(int32_t slot, int32_t expert) const;
  // An expert has replicas on two sites or more.
  bool IsOnTwoSites(int32_t expert) const { return IsOnTwoSites(expert, kEmpty, kEmpty); }

  // Empties all slots and sets the replica counts that units are computed from.
  void Reset(std::span<const int32_t> counts);
  // Takes over a whole layout. REQUIRES: every expert in a slot, no slot empty.
  void Assign(std::span<const int32_t> experts);
  // Puts an expert into an empty slot; its count was set by Reset.
  void Put(int32_t slot, int32_t expert);
  // Moves what a slot holds to an empty one.
  void MoveToEmpty(int32_t from, int32_t to);
  // Exchanges the experts of two slots.
  void Swap(int32_t a, int32_t b);
  // One replica less of what the slot holds, one more of `expert` there. Units change on all GPUs
  // that hold either.
  void Replace(int32_t slot, int32_t expert);
  // Swaps and replacements since the journal began can be taken back, the last first.
  void BeginJournal();
  void RollBack();

 private:
  // A swap of two slots, or a replacement in `slot`, which held `expert` before.
  struct Change {
    int32_t slot;
    int32_t other_slot;  // kEmpty for a replacement
    int32_t expert;
  };
  void DoSwap(int32_t a, int32_t b);
  void DoReplace(int32_t slot, int32_t expert);
  void Link(int32_t slot, int32_t expert);
  void Unlink(int32_t slot);
  void SetCount(int32_t expert, int32_t count);
  // Another replica of `expert` stays on its home when one leaves `gpu` for `to` (or nowhere).
  bool AffinityKept(int32_t gpu, int32_t to, int32_t expert) const;
  // An expert has replicas on two sites or more when its replica in `slot` moves to GPU `to`. With
  // `slot` kEmpty no replica moves; with `to` alone kEmpty the replica ends.
  bool IsOnTwoSites(int32_t expert, int32_t slot, int32_t to) const;
  // An expert that must stay on two sites does so when the replica in `slot` moves.
  bool SitesKept(int32_t slot, int32_t to) const;

  const Domain* domain_;
  std::vector<int32_t> gpu_of_;        // [S]
  std::vector<int32_t> first_;         // [m + 1]
  std::vector<int32_t> min_copies_;    // [m]
  std::vector<int32_t> max_copies_;    // [m]
  std::vector<double> inverse_speed_;  // [m]
  std::vector<int32_t> expert_;        // [S]
  std::vector<int32_t> next_;          // [S], lists of the slots of each expert
  std::vector<int32_t> previous_;      // [S]
  std::vector<int32_t> head_;          // [n]
  std::vector<int32_t> count_;         // [n]
  std::vector<double> unit_;           // [n]
  std::vector<double> slot_unit_;      // [S], unit of what the slot holds
  std::vector<double> tokens_;         // [m]
  std::vector<Change> journal_;
  std::vector<double> journal_tokens_;  // [m], tokens when the journal began
};

}  // namespace eplb
