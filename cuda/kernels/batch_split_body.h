// The body of the split of a batch: what a block of the GPU, or a thread of the CPU, does for one
// layer. It adds up the sources' counts, splits them, and gives one source its part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "cuda/kernels/aligned_access.h"
#include "placement/split/own_quotas_body.h"
#include "placement/split/slot_quotas.h"
#include "placement/split/split_body.h"
#include "placement/split/split_holders.h"
#include "placement/split/split_tables.h"

namespace eplb::cuda {

inline constexpr int32_t kNotRefused = -1;
// Largest EP group whose batches a kernel splits. BatchSplitter splits over more, on the CPU.
inline constexpr int32_t kMaxSplitGpus = GpuSet<2>::kMaxGpus;
inline constexpr int32_t kSumThreads = 256;  // threads that add up counts

// Pointers are to device memory for LaunchSplit, to host memory for SplitOnHost.
struct SplitArgs {
  SplitShape shape;
  // PackSplitTables of a placement of this shape, aligned to 16 bytes. A launch reads all that it
  // knows of the placement from here, so a captured graph uses the tables of the time it runs.
  const std::byte* tables = nullptr;
  int32_t first_layer = 0;  // first layer in `tables`
  int32_t num_layers = 0;   // layers first_layer .. first_layer + num_layers - 1 are split
  // [num_sources, num_layers, num_experts]: the tokens of each source, as an all-gather gives them.
  // The sum of the sources is split; one source: it is the sum already.
  const int64_t* counts = nullptr;
  int32_t num_sources = 1;
  int64_t* quotas = nullptr;   // [num_layers, num_slots], set; -1 in a layer that is refused
  SplitPeak* peaks = nullptr;  // [num_layers], SplitBound::peak, set; null: not wanted
  // [num_layers], set: kNotRefused, the lowest expert with a count below 0 or more than
  // kMaxNarrowTokens tokens, or num_experts if all experts have more together, or if the tables
  // refuse the layer.
  int32_t* refused = nullptr;
  // [num_layers, num_slots], set: the tokens of rank `source` for each slot, as OwnQuotas has them;
  // -1 in a layer that is refused. Null: not wanted. REQUIRES: the sources are the ranks of the EP
  // group.
  int64_t* own = nullptr;
  int32_t source = 0;
  int32_t gpus_of_node = 1;  // divides the number of GPUs
};
static_assert(std::is_trivially_copyable_v<SplitArgs>);

// ---- tables of a layer ----

// Unit of a copy of the tables.
struct alignas(16) TableUnit {
  std::byte bytes[16];
};

// First bytes of a layer's tables. They are followed by the speeds of the GPUs, the holders of the
// parts, and the tables of LayerAt in 16-bit integers, of which replica_slot is rising for each
// expert.
struct PackedLayer {
  SplitLayerTables sizes;  // `begin` is unused
  SplitMargins margins;
  int32_t equal_speeds = 1;
  int32_t refuses = 0;  // 1: no batch of the layer is split
};

using PackedSplitLayer = SplitLayerOf<uint16_t>;

// Each expert has a slot, so the slots beyond these bound the replicas: an expert of n parts takes
// n - 1 of them.
EPLB_HOST_DEVICE inline SplitSizes LargestSizes(const SplitShape& shape) {
  const int32_t spare = shape.num_slots - shape.num_experts;
  return {.num_gpus = shape.num_gpus,
          .num_parts = 2 * spare < shape.num_slots ? 2 * spare : shape.num_slots,
          .num_replicated = spare < shape.num_experts ? spare : shape.num_experts};
}

// Integers of the largest layer. An inner expert has two parts or more on GPUs of the outer one.
EPLB_HOST_DEVICE inline int64_t MaxTableNumbers(const SplitShape& shape) {
  const SplitSizes sizes = LargestSizes(shape);
  const int64_t squares = int64_t{sizes.num_replicated} * sizes.num_replicated;
  const int64_t pairs = int64_t{sizes.num_parts} * shape.max_slots_of_gpu / 2;
  return 3 * int64_t{shape.num_experts} + sizes.num_replicated + 8 * int64_t{sizes.num_parts} +
         2 * (pairs < squares ? pairs : squares) + shape.num_gpus + 5 * int64_t{shape.num_slots} +
         3;
}

// The tables of a layer: PackedLayer and what follows it.
template <int kWords>
struct LayerTables {
  PackedLayer* header;
  int64_t* speeds;          // [G]
  GpuSet<kWords>* holders;  // by part
  uint16_t* numbers;        // tables that LayerAt views
};
template <int kWords>
EPLB_HOST_DEVICE LayerTables<kWords> CarveTables(const SplitShape& shape, Carver& carver) {
  LayerTables<kWords> tables;
  tables.header = carver.Take<PackedLayer>(1);
  tables.speeds = carver.Take<int64_t>(shape.num_gpus);
  tables.holders = carver.Take<GpuSet<kWords>>(LargestSizes(shape).num_parts);
  tables.numbers = carver.Take<uint16_t>(MaxTableNumbers(shape));
  carver.Align(alignof(TableUnit));
  return tables;
}

template <int kWords>
EPLB_HOST_DEVICE PackedSplitLayer LayerOf(const SplitShape& shape,
                                          const LayerTables<kWords>& tables) {
  PackedSplitLayer layer = LayerAt<uint16_t>(tables.numbers, tables.header->sizes, shape);
  layer.equal_speeds = tables.header->equal_speeds != 0;
  layer.speed = tables.speeds;
  return layer;
}

// ---- memory of a layer: shared on the GPU ----

using Tokens = int32_t;  // a number of tokens, at most kMaxNarrowTokens

template <int kWords>
struct SplitMemory {
  std::byte* table_bytes;  // `tables` as bytes
  int64_t num_table_bytes;
  LayerTables<kWords> tables;
  Tokens* sums;  // [E], or [groups, E] until TakeSums adds up the groups of sources
  SplitScratch<kWords, Tokens> scratch;
  Tokens* quotas;    // [S]
  int32_t* refused;  // SplitArgs::refused
};
template <int kWords>
EPLB_HOST_DEVICE SplitMemory<kWords> CarveMemory(const SplitArgs& args, Carver& carver,
                                                 bool in_registers) {
  const int64_t experts = args.shape.num_experts;
  const int64_t sums = experts < kSumThreads ? kSumThreads : experts;
  SplitMemory<kWords> memory;
  memory.table_bytes = carver.Take<std::byte>(0);
  memory.tables = CarveTables<kWords>(args.shape, carver);
  memory.num_table_bytes = carver.taken();
  memory.sums = carver.Take<Tokens>(sums);
  memory.scratch = CarveScratch<kWords, Tokens>(LargestSizes(args.shape), carver, in_registers);
  memory.quotas = carver.Take<Tokens>(args.shape.num_slots);
  memory.refused = carver.Take<int32_t>(1);
  return memory;
}

// ---- before the split, by the threads of a block ----

// Groups of sources that different threads add up.
EPLB_HOST_DEVICE inline int32_t NumSourceGroups(const SplitArgs& args, int32_t num_threads) {
  const int32_t groups = num_threads / args.shape.num_experts;
  if (groups <= 1) return 1;
  return groups < args.num_sources ? groups : args.num_sources;
}

// Sums of one expert's counts.
struct SourceSums {
  uint64_t all = 0;
  uint64_t high = 0;  // not 0 if no split accepts one of the counts
};

// Adds up the sources begin..end-1. counts: those of source 0, the next ones are `stride` apart.
EPLB_HOST_DEVICE inline SourceSums SumOf(const int64_t* counts, int64_t stride, int32_t begin,
                                         int32_t end) {
  constexpr int32_t kLoads = 16;  // under way at once
  const int64_t* next = counts + begin * stride;
  SourceSums sums;
  EPLB_ROLLED
  for (int32_t source = begin; source < end; source += kLoads) {
    uint64_t loaded[kLoads];
    EPLB_UNROLL
    for (int32_t i = 0; i < kLoads; ++i) {
      loaded[i] = source + i < end ? static_cast<uint64_t>(*next) : uint64_t{0};
      next += source + i < end ? stride : 0;
    }
    EPLB_UNROLL
    for (int32_t i = 0; i < kLoads; ++i) {
      sums.all += loaded[i];
      sums.high |= loaded[i] & ~(2 * static_cast<uint64_t>(kMaxNarrowTokens) - 1);
    }
  }
  return sums;
}

// index: of the layer, 0..num_layers-1. A sum of -1 is one that no split accepts.
template <int kWords>
EPLB_HOST_DEVICE void SumSources(const SplitArgs& args, int32_t index,
                                 const SplitMemory<kWords>& memory, int32_t thread,
                                 int32_t num_threads) {
  const int32_t num_experts = args.shape.num_experts;
  const int32_t groups = NumSourceGroups(args, num_threads);
  const int32_t each = (args.num_sources + groups - 1) / groups;
  EPLB_ROLLED
  for (int32_t i = thread; i < groups * num_experts; i += num_threads) {
    const int32_t group = i / num_experts;
    const int32_t expert = i - group * num_experts;
    const int64_t* const counts = args.counts + int64_t{index} * num_experts + expert;
    const int64_t stride = int64_t{args.num_layers} * num_experts;
    const int32_t begin = group * each;
    const int32_t end = begin + each < args.num_sources ? begin + each : args.num_sources;
    const SourceSums sums = SumOf(counts, stride, begin, end);
    const bool fits = sums.high == 0 && sums.all <= kMaxNarrowTokens;
    memory.sums[i] = fits ? static_cast<Tokens>(sums.all) : -1;
  }
}

// ---- the split, by a team ----

// Adds up the groups of sources. Returns SplitArgs::refused.
template <int kWords, class Team>
EPLB_HOST_DEVICE int32_t TakeSums(const SplitArgs& args, const SplitMemory<kWords>& memory,
                                  int32_t groups, const Team& team) {
  const int32_t num_experts = args.shape.num_experts;
  int64_t all = 0;
  int32_t refused = 0;  // num_experts - expert, so that the lowest is the largest
  team.ForEach(num_experts, [&](int32_t expert) {
    int64_t sum = memory.sums[expert];
    bool fits = sum >= 0;
    EPLB_ROLLED
    for (int32_t i = num_experts + expert; i < groups * num_experts; i += num_experts) {
      fits = fits && memory.sums[i] >= 0;
      sum += memory.sums[i];
    }
    memory.sums[expert] = static_cast<Tokens>(sum);
    all += sum;
    if (fits && sum <= kMaxNarrowTokens) return;
    if (refused < num_experts - expert) refused = num_experts - expert;
  });
  refused = team.Max(refused);
  if (refused > 0) return num_experts - refused;
  // 32 lanes with one token more than a layer may have add up to less than 2^31.
  all = team.Sum(static_cast<int32_t>(all <= kMaxNarrowTokens ? all : kMaxNarrowTokens + 1));
  return all > kMaxNarrowTokens ? num_experts : kNotRefused;
}

template <int kWords, class Team>
EPLB_HOST_DEVICE void SolveLayer(const SplitArgs& args, int32_t index,
                                 const SplitMemory<kWords>& memory, int32_t groups,
                                 const Team& team) {
  const int32_t refused = memory.tables.header->refuses != 0 ? args.shape.num_experts
                                                             : TakeSums(args, memory, groups, team);
  SplitPeak peak;
  if (refused == kNotRefused) {
    const PackedSplitLayer layer = LayerOf(args.shape, memory.tables);
    SplitBody<kWords, Tokens, PackedSplitLayer, Team> body(layer, memory.tables.holders, nullptr,
                                                           memory.scratch, team);
    peak = body.Solve(memory.sums, memory.tables.header->margins).peak;
  }
  if (!team.leader()) return;
  *memory.refused = refused;
  args.refused[index] = refused;
  if (args.peaks != nullptr) args.peaks[index] = peak;
}

// ---- after the split, by the threads of a block ----

// Consumes memory.quotas. own: [S], of the layer.
template <int kWords, class Block>
EPLB_HOST_DEVICE void WriteOwn(const SplitArgs& args, int32_t index,
                               const SplitMemory<kWords>& memory, const PackedSplitLayer& layer,
                               int64_t* own, const Block& block) {
  EPLB_ROLLED
  for (int32_t i = block.thread; i < layer.num_shared; i += block.num_threads) {
    if (layer.shared_among[i] == 0) own[layer.shared_slot[i]] = 0;
  }
  const SourcePlace place{.num_gpus = args.shape.num_gpus,
                          .num_slots = args.shape.num_slots,
                          .gpus_of_node = args.gpus_of_node,
                          .source = args.source};
  const int64_t stride = int64_t{args.num_layers} * args.shape.num_experts;
  EPLB_ROLLED
  for (int32_t expert = block.thread; expert < args.shape.num_experts;
       expert += block.num_threads) {
    const int64_t* const counts = args.counts + int64_t{index} * args.shape.num_experts + expert;
    const uint16_t* const slots = layer.replica_slot + layer.first_slot[expert];
    const int32_t num_slots = layer.first_slot[expert + 1] - layer.first_slot[expert];
    if (num_slots == 1) {
      own[*slots] = counts[args.source * stride];
    } else {
      FillOwn(place, TokensByRank(counts, stride, place.num_gpus), slots, num_slots, memory.quotas,
              own);
    }
  }
}

// Block: thread, num_threads, and Sync, a barrier of all threads.
template <int kWords, class Block>
EPLB_HOST_DEVICE void WriteLayer(const SplitArgs& args, int32_t index,
                                 const SplitMemory<kWords>& memory, const Block& block) {
  const int32_t num_slots = args.shape.num_slots;
  int64_t* const quotas = args.quotas + int64_t{index} * num_slots;
  int64_t* const own = args.own == nullptr ? nullptr : args.own + int64_t{index} * num_slots;
  if (*memory.refused != kNotRefused) {
    EPLB_ROLLED
    for (int32_t slot = block.thread; slot < num_slots; slot += block.num_threads) {
      quotas[slot] = -1;
      if (own != nullptr) own[slot] = -1;
    }
    return;
  }
  const PackedSplitLayer layer = LayerOf(args.shape, memory.tables);
  WriteQuotas(layer, memory.sums, memory.scratch.part_tokens, memory.quotas, block.thread,
              block.num_threads);
  block.Sync();
  ShareQuotas(layer, memory.quotas, block.thread, block.num_threads);
  block.Sync();
  EPLB_ROLLED
  for (int32_t slot = block.thread; slot < num_slots; slot += block.num_threads) {
    quotas[slot] = memory.quotas[slot];
  }
  if (own == nullptr) return;
  block.Sync();
  WriteOwn(args, index, memory, layer, own, block);
}

}  // namespace eplb::cuda
