#include "placement/search/pack.h"

#include <algorithm>
#include <bit>

namespace eplb {
namespace {

// PackingLoads that are the arrangement's own.
struct OwnLoads {
  const Arrangement& arrangement;

  double LoadAfter(int32_t gpu, int32_t expert) const {
    return (arrangement.tokens(gpu) + arrangement.unit(expert)) * arrangement.inverse_speed(gpu);
  }
  void Placed(int32_t /*gpu*/, int32_t /*expert*/) {}
  void Moved() {}
};

}  // namespace

template <class Key>
void Packer::OrderBy(size_t num_experts, const Key& key) {
  by_key_.clear();
  for (size_t expert = 0; expert < num_experts; ++expert) {
    by_key_.emplace_back(-key(static_cast<int32_t>(expert)), static_cast<int32_t>(expert));
  }
  std::ranges::sort(by_key_);
  order_.clear();
  for (const auto& [negative, expert] : by_key_) order_.push_back(expert);
}

void Packer::Pack(std::span<const int32_t> counts, Arrangement& arrangement) {
  Begin(counts, arrangement);
  OrderBy(counts.size(), [&](int32_t expert) { return arrangement.unit(expert); });
  const bool plain = arrangement.domain().equal_speeds() &&
                     arrangement.domain().MaxReplicas() == arrangement.num_gpus();
  OwnLoads loads{arrangement};
  if (plain ? PackByWinnerTree(counts, arrangement) : PackByLoad(counts, loads, arrangement))
    return;
  Begin(counts, arrangement);
  OrderBy(counts.size(), [&](int32_t expert) { return double{1} * arrangement.count(expert); });
  PackByRoom(counts, arrangement);
}

bool Packer::PackBy(std::span<const int32_t> counts, PackingLoads& loads,
                    Arrangement& arrangement) {
  Begin(counts, arrangement);
  loads.Moved();
  OrderBy(counts.size(), [&](int32_t expert) { return loads.UnitOf(expert); });
  return PackByLoad(counts, loads, arrangement);
}

// Puts what every GPU must hold, where GPUs have more slots than there are experts.
void Packer::Begin(std::span<const int32_t> counts, Arrangement& arrangement) {
  arrangement.Reset(counts);
  filled_.assign(AsIndex(arrangement.num_gpus()), 0);
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    for (int32_t copy = 0; copy < arrangement.domain().MinCopies(gpu); ++copy) {
      for (size_t expert = 0; expert < counts.size(); ++expert) {
        PutOn(gpu, static_cast<int32_t>(expert), arrangement);
      }
    }
  }
}

bool Packer::PackByWinnerTree(std::span<const int32_t> counts, Arrangement& arrangement) {
  // The lightest GPU has the largest key; the lowest index wins ties; 0 never wins.
  const auto key = [&](int32_t gpu) {
    const auto g = AsIndex(gpu);
    if (arrangement.first_slot(gpu) + filled_[g] == arrangement.end_slot(gpu)) return uint64_t{0};
    const auto load = std::bit_cast<uint32_t>(static_cast<float>(arrangement.tokens(gpu)));
    return (uint64_t{~load} << 32) | ~static_cast<uint32_t>(gpu);
  };
  if (!lightest_.has_value()) lightest_.emplace(filled_.size());
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    lightest_->Set(AsIndex(gpu), key(gpu));
  }
  lightest_->Play();
  for (const int32_t expert : order_) {
    taken_.clear();
    for (int32_t placed = 0; placed < counts[AsIndex(expert)]; ++placed) {
      if (lightest_->winner() == 0) {
        // MakeRoom changes other GPUs too.
        if (!MakeRoom(expert, arrangement)) return false;
        for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) taken_.push_back(gpu);
        continue;
      }
      const auto gpu = static_cast<int32_t>(~static_cast<uint32_t>(lightest_->winner()));
      PutOn(gpu, expert, arrangement);
      lightest_->Replace(AsIndex(gpu), 0);
      taken_.push_back(gpu);
    }
    for (const int32_t gpu : taken_) lightest_->Replace(AsIndex(gpu), key(gpu));
  }
  return true;
}

template <class Loads, class Allowed>
int32_t Packer::LightestFor(int32_t expert, const Loads& loads, const Arrangement& arrangement,
                            const Allowed& allowed) const {
  int32_t best = -1;
  double least = 0;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    if (arrangement.first_slot(gpu) + filled_[AsIndex(gpu)] == arrangement.end_slot(gpu)) continue;
    const double load = loads.LoadAfter(gpu, expert);
    if ((best < 0 || load < least) && allowed(gpu) && arrangement.MayArrive(gpu, expert)) {
      best = gpu;
      least = load;
    }
  }
  return best;
}

template <class Loads>
bool Packer::PackByLoad(std::span<const int32_t> counts, Loads& loads, Arrangement& arrangement) {
  const int32_t forced = arrangement.domain().ForcedReplicas();
  for (const int32_t expert : order_) {
    for (int32_t placed = forced; placed < counts[AsIndex(expert)]; ++placed) {
      const int32_t gpu =
          LightestFor(expert, loads, arrangement, [](int32_t /*gpu*/) { return true; });
      if (gpu >= 0) {
        PutOn(gpu, expert, arrangement);
        loads.Placed(gpu, expert);
      } else if (MakeRoom(expert, arrangement)) {
        loads.Moved();
      } else {
        return false;
      }
    }
  }
  return true;
}

void Packer::PackByRoom(std::span<const int32_t> counts, Arrangement& arrangement) {
  const int32_t forced = arrangement.domain().ForcedReplicas();
  for (const int32_t expert : order_) {
    for (int32_t placed = forced; placed < counts[AsIndex(expert)]; ++placed) {
      PutOn(RoomiestFor(expert, arrangement), expert, arrangement);
    }
  }
}

bool Packer::PackOnAffineNode(std::span<const int32_t> counts, Arrangement& arrangement) {
  const Domain& domain = arrangement.domain();
  Begin(counts, arrangement);
  OrderBy(counts.size(), [&](int32_t expert) { return arrangement.unit(expert); });
  const int32_t affinities = 1 + *std::ranges::max_element(domain.affine_node_of_gpu);
  // Free slots of each home beyond one for each of its experts that is still to come.
  room_.assign(AsIndex(affinities), 0);
  for (size_t gpu = 0; gpu < domain.slots.size(); ++gpu) {
    room_[AsIndex(domain.affine_node_of_gpu[gpu])] += domain.slots[gpu];
  }
  for (const int32_t home : domain.affine_node_of_expert) --room_[AsIndex(home)];
  for (const int32_t expert : order_) {
    const int32_t home = domain.affine_node_of_expert[AsIndex(expert)];
    for (int32_t placed = 0; placed < counts[AsIndex(expert)]; ++placed) {
      const OwnLoads loads{arrangement};
      const int32_t gpu = LightestFor(expert, loads, arrangement, [&](int32_t candidate) {
        const int32_t at = domain.affine_node_of_gpu[AsIndex(candidate)];
        return placed == 0 ? at == home : room_[AsIndex(at)] > 0;
      });
      if (gpu < 0) return false;
      if (placed > 0) --room_[AsIndex(domain.affine_node_of_gpu[AsIndex(gpu)])];
      PutOn(gpu, expert, arrangement);
    }
  }
  return true;
}

int32_t Packer::RoomiestFor(int32_t expert, const Arrangement& arrangement) const {
  int32_t best = -1;
  int32_t most = 0;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    const int32_t room =
        arrangement.end_slot(gpu) - arrangement.first_slot(gpu) - filled_[AsIndex(gpu)];
    if (room > most && arrangement.MayArrive(gpu, expert)) {
      best = gpu;
      most = room;
    }
  }
  return best;
}

bool Packer::MakeRoom(int32_t expert, Arrangement& arrangement) {
  int32_t best = -1;
  int32_t best_free = -1;
  double least = 0;
  for (int32_t free = 0; free < arrangement.num_slots(); ++free) {
    if (arrangement.expert_in(free) != Arrangement::kEmpty) continue;
    const int32_t roomy = arrangement.gpu_of(free);
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      const int32_t other = arrangement.expert_in(slot);
      const int32_t gpu = arrangement.gpu_of(slot);
      if (other == Arrangement::kEmpty || gpu == roomy || !arrangement.MayArrive(gpu, expert) ||
          !arrangement.MayArrive(roomy, other) || !arrangement.MayLeave(gpu, other)) {
        continue;
      }
      const double peak = std::max(
          (arrangement.tokens(gpu) - arrangement.unit(other) + arrangement.unit(expert)) *
              arrangement.inverse_speed(gpu),
          (arrangement.tokens(roomy) + arrangement.unit(other)) * arrangement.inverse_speed(roomy));
      if (best < 0 || peak < least) {
        best = slot;
        best_free = free;
        least = peak;
      }
    }
  }
  if (best < 0) return false;
  arrangement.MoveToEmpty(best, best_free);
  arrangement.Put(best, expert);
  ++filled_[AsIndex(arrangement.gpu_of(best_free))];
  return true;
}

void Packer::PutOn(int32_t gpu, int32_t expert, Arrangement& arrangement) {
  int32_t& filled = filled_[AsIndex(gpu)];
  arrangement.Put(arrangement.first_slot(gpu) + filled++, expert);
}

}  // namespace eplb
