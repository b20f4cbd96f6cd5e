// The body of routing by quota: the choices of an expert, in the order of their index, fill its
// slots. Three passes, so that the order holds on any grid: each chunk of choices is counted by
// expert, the counts of the chunks before are added up, and each chunk routes from there on.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "cuda/kernels/count_body.h"
#include "cuda/kernels/route_body.h"

namespace eplb::cuda {

// Pointers are to device memory for LaunchQuotaRoute, to host memory for QuotaRouteOnHost.
struct QuotaRouteArgs {
  CountArgs choices;  // choices of one layer; its counters are not used
  // SplitLayer's: an expert's slots in the order of replica rank.
  const int32_t* first_slot = nullptr;    // [num_experts + 1]
  const int32_t* replica_slot = nullptr;  // [first_slot[num_experts]]
  const int64_t* own = nullptr;           // [num_slots], this rank's quotas, as SplitArgs::own
  // [num_tokens, top_k] of choices.id_type; may be expert_ids itself, else apart from it.
  void* slots = nullptr;
  int64_t* beyond = nullptr;        // [1], choices beyond their expert's quotas are added to it
  int32_t* chunk_counts = nullptr;  // [NumChunks, num_experts], scratch memory
};
static_assert(std::is_trivially_copyable_v<QuotaRouteArgs>);

// Neighbours that one warp takes, 32 at a time.
inline constexpr int64_t kChunkChoices = 1024;

EPLB_HOST_DEVICE inline int64_t NumChunks(const CountArgs& choices) {
  return (choices.num_tokens * choices.top_k + kChunkChoices - 1) / kChunkChoices;
}

// A thread by itself as a machine; the GPU's is Warp. kWidth: its lanes; Match(value): the lanes
// with the same value, a bit each; AddTo: an atomic addition.
struct SoleLane {
  static constexpr int32_t kWidth = 1;
  static constexpr int32_t lane() { return 0; }
  static uint32_t Match(int32_t) { return 1; }
  static void AddTo(int64_t& sum, int64_t value) { sum += value; }
  static void Sync() {}
};

EPLB_HOST_DEVICE inline int32_t NumLanes(uint32_t lanes) {
#ifdef __CUDA_ARCH__
  return __popc(lanes);
#else
  return __builtin_popcount(lanes);
#endif
}

// Takes the choices of a chunk in their order, a round of the machine's lanes at a time. Calls
// read(index, bin, place) for each, with `bin` as BinOfId and `place` the number of choices of this
// bin before it in the round; then, once an expert that is in the round, write(expert, its
// choices).
template <class ExpertId, class Machine, class Read, class Write>
EPLB_HOST_DEVICE void VisitChunk(const QuotaRouteArgs& args, int64_t chunk, const Machine& machine,
                                 const Read& read, const Write& write) {
  const int64_t end = args.choices.num_tokens * args.choices.top_k;
  const auto* const ids = static_cast<const ExpertId*>(args.choices.expert_ids);
  for (int64_t first = 0; first < kChunkChoices; first += Machine::kWidth) {
    const int64_t index = chunk * kChunkChoices + first + machine.lane();
    const bool exists = index < end;
    const int32_t bin = exists ? BinOfId(args.choices, index, ids[index]) : kNoBin;
    const uint32_t same = machine.Match(bin);
    const int32_t place = NumLanes(same & ((uint32_t{1} << machine.lane()) - 1));
    if (exists) read(index, bin, place);
    machine.Sync();
    const bool has_counter = bin != kNoBin && bin < args.choices.num_experts;
    if (has_counter && place == 0) write(bin, NumLanes(same));
    machine.Sync();
  }
}

// First pass.
template <class ExpertId, class Machine>
EPLB_HOST_DEVICE void CountChunk(const QuotaRouteArgs& args, int64_t chunk,
                                 const Machine& machine) {
  int32_t* const counts = args.chunk_counts + chunk * args.choices.num_experts;
  for (int32_t expert = machine.lane(); expert < args.choices.num_experts;
       expert += Machine::kWidth) {
    counts[expert] = 0;
  }
  machine.Sync();
  VisitChunk<ExpertId>(
      args, chunk, machine, [](int64_t, int32_t, int32_t) {},
      [counts](int32_t bin, int32_t same) { counts[bin] += same; });
}

// Second pass: an expert's counts become those of the chunks before.
EPLB_HOST_DEVICE inline void AddUpChunks(const QuotaRouteArgs& args, int32_t expert) {
  const int64_t num_chunks = NumChunks(args.choices);
  int32_t sum = 0;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    int32_t& count = args.chunk_counts[chunk * args.choices.num_experts + expert];
    const int32_t before = sum;
    sum += count;
    count = before;
  }
}

// The slot of an expert's choice number `place`; kNoSlot: its quotas end before.
EPLB_HOST_DEVICE inline int32_t SlotOfPlace(const QuotaRouteArgs& args, int32_t expert,
                                            int64_t place) {
  for (int32_t i = args.first_slot[expert]; i < args.first_slot[expert + 1]; ++i) {
    const int32_t slot = args.replica_slot[i];
    if (place < args.own[slot]) return slot;
    place -= args.own[slot];
  }
  return kNoSlot;
}

// Third pass.
template <class ExpertId, class Machine>
EPLB_HOST_DEVICE void RouteChunk(const QuotaRouteArgs& args, int64_t chunk,
                                 const Machine& machine) {
  int32_t* const counts = args.chunk_counts + chunk * args.choices.num_experts;
  auto* const slots = static_cast<ExpertId*>(args.slots);
  VisitChunk<ExpertId>(
      args, chunk, machine,
      [&](int64_t index, int32_t bin, int32_t place) {
        int32_t slot = kNoSlot;
        if (bin != kNoBin && bin < args.choices.num_experts) {
          slot = SlotOfPlace(args, bin, int64_t{counts[bin]} + place);
          if (slot == kNoSlot) machine.AddTo(*args.beyond, 1);
        }
        slots[index] = slot;
      },
      [counts](int32_t bin, int32_t same) { counts[bin] += same; });
}

}  // namespace eplb::cuda
