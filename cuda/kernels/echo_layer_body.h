// One layer of a batch's echo, from its counts to its quotas, in fast memory: shared memory of a
// block, or any memory of the CPU.
#ifndef EPLB_CUDA_KERNELS_ECHO_LAYER_BODY_H_
#define EPLB_CUDA_KERNELS_ECHO_LAYER_BODY_H_

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "placement/echo/echo_body.h"

namespace eplb::cuda {

// Pointers are to device memory for LaunchEcho, to host memory for EchoOnHost. X is num_gpus *
// spares_per_gpu. What a job knows beforehand, and what each batch brings:
struct EchoArgs {
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;  // S, home slots
  int32_t num_gpus = 0;
  int32_t gpus_per_domain = 0;
  int32_t spares_per_gpu = 0;
  int64_t tolerance = 0;                       // in 1 / kEchoToleranceUnit
  const int32_t* first_slot = nullptr;         // [G + 1]
  const int32_t* slot_expert = nullptr;        // [L, S], -1: none
  const int32_t* slot_num_replicas = nullptr;  // [L, S], homes of the slot's expert
  const int32_t* slot_replica_rank = nullptr;  // [L, S], which of them the slot is
  const int64_t* counts = nullptr;             // [L, E], summed over the EP group

  int64_t* home_tokens = nullptr;   // [L, S], out
  int32_t* source = nullptr;        // [L, X], out: home slot, -1: none
  int64_t* spare_tokens = nullptr;  // [L, X], out
  // [L], out. num_replicas is -1 where a count is negative or they are more than kMaxEchoTokens:
  // all tokens of the layer are 0 then, and no spare slot has a source.
  EchoPeak* peaks = nullptr;
};
static_assert(std::is_trivially_copyable_v<EchoArgs>);

EPLB_HOST_DEVICE inline int64_t NumEchoSpares(const EchoArgs& args) {
  return int64_t{args.num_gpus} * args.spares_per_gpu;
}

// Of one layer's fast memory, which begins at a multiple of 8.
EPLB_HOST_DEVICE inline int64_t EchoLayerBytes(const EchoArgs& args) {
  const int64_t wide =
      int64_t{3} * args.num_gpus + int64_t{2} * args.num_slots + NumEchoSpares(args);
  const int64_t narrow = int64_t{2} * args.num_gpus + 1 + args.num_slots + NumEchoSpares(args);
  return 8 * wide + 4 * narrow;
}

// Plans layer `index` of the batch. memory: EchoLayerBytes, of the team alone.
template <class Team>
class EchoLayerWork {
 public:
  EPLB_HOST_DEVICE EchoLayerWork(const EchoArgs& args, int32_t index, void* memory,
                                 const Team& team)
      : args_(args), index_(index), team_(team) {
    auto* wide = static_cast<int64_t*>(memory);
    scratch_.load = Take(wide, args.num_gpus);
    scratch_.order = Take(wide, args.num_gpus);
    scratch_.receivers = Take(wide, args.num_gpus);
    scratch_.given = Take(wide, args.num_slots);
    tokens_.home = Take(wide, args.num_slots);
    tokens_.spare = Take(wide, NumEchoSpares(args));
    auto* narrow = reinterpret_cast<int32_t*>(wide);
    scratch_.num_used = Take(narrow, args.num_gpus);
    first_slot_ = Take(narrow, args.num_gpus + 1);
    slot_expert_ = Take(narrow, args.num_slots);
    tokens_.source = Take(narrow, NumEchoSpares(args));
  }

  EPLB_HOST_DEVICE void Run() {
    const bool usable = CountsAreUsable();
    Load(usable);
    const EchoLayer layer{.num_gpus = args_.num_gpus,
                          .gpus_per_domain = args_.gpus_per_domain,
                          .spares_per_gpu = args_.spares_per_gpu,
                          .first_slot = first_slot_,
                          .slot_expert = slot_expert_};
    // Without tokens, where the counts are of no use, the echo is empty.
    EchoPeak peak = EchoBody<Team>(layer, tokens_, scratch_, team_).Solve(args_.tolerance);
    if (!usable) peak.num_replicas = -1;
    Store(peak);
  }

 private:
  template <class T>
  EPLB_HOST_DEVICE static T* Take(T*& memory, int64_t count) {
    T* const taken = memory;
    memory += count;
    return taken;
  }

  EPLB_HOST_DEVICE const int64_t* counts() const {
    return args_.counts + int64_t{index_} * args_.num_experts;
  }

  EPLB_HOST_DEVICE bool CountsAreUsable() const {
    int64_t sum = 0;
    int64_t num_wrong = 0;
    team_.ForEach(args_.num_experts, [&](int32_t expert) {
      const int64_t tokens = counts()[expert];
      if (tokens < 0 || tokens > kMaxEchoTokens) {
        ++num_wrong;
      } else {
        sum += tokens;
      }
    });
    return team_.Sum(num_wrong) == 0 && team_.Sum(sum) <= kMaxEchoTokens;
  }

  EPLB_HOST_DEVICE void Load(bool usable) {
    team_.ForEach(args_.num_gpus + 1,
                  [this](int32_t gpu) { first_slot_[gpu] = args_.first_slot[gpu]; });
    const int64_t first = int64_t{index_} * args_.num_slots;
    team_.ForEach(args_.num_slots, [this, first, usable](int32_t slot) {
      const int32_t expert = args_.slot_expert[first + slot];
      slot_expert_[slot] = expert;
      tokens_.home[slot] =
          expert < 0 || !usable
              ? 0
              : EqualEchoShare(counts()[expert], args_.slot_num_replicas[first + slot],
                               args_.slot_replica_rank[first + slot]);
    });
  }

  EPLB_HOST_DEVICE void Store(const EchoPeak& peak) const {
    team_.ForEach(args_.num_slots, [this](int32_t slot) {
      args_.home_tokens[int64_t{index_} * args_.num_slots + slot] = tokens_.home[slot];
    });
    const int64_t num_spares = NumEchoSpares(args_);
    team_.ForEach(static_cast<int32_t>(num_spares), [this, num_spares](int32_t spare) {
      args_.source[index_ * num_spares + spare] = tokens_.source[spare];
      args_.spare_tokens[index_ * num_spares + spare] = tokens_.spare[spare];
    });
    team_.ForEach(1, [this, &peak](int32_t) { args_.peaks[index_] = peak; });
  }

  const EchoArgs& args_;
  int32_t index_;
  Team team_;
  EchoScratch scratch_;
  EchoTokens tokens_;
  int32_t* first_slot_ = nullptr;   // [G + 1]
  int32_t* slot_expert_ = nullptr;  // [S]
};

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_ECHO_LAYER_BODY_H_
