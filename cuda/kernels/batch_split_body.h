// The body of the split of a batch: what a warp of the GPU, or a thread of the CPU, does for one
// layer. It adds up the sources' counts, splits them, and gives one source its part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "placement/split/split_body.h"
#include "placement/split/split_tables.h"

namespace eplb::cuda {

inline constexpr int32_t kNotRefused = -1;
// Largest EP group whose batches a kernel splits. BatchSplitter splits over more, on the CPU.
inline constexpr int32_t kMaxSplitGpus = GpuSet<2>::kMaxGpus;

// Pointers are to device memory for LaunchSplit, to host memory for SplitOnHost.
struct SplitArgs {
  SplitTables tables;       // its three arrays likewise
  int32_t first_layer = 0;  // first layer in `tables`
  int32_t num_layers = 0;   // layers first_layer .. first_layer + num_layers - 1 are split
  // [num_sources, num_layers, num_experts]: the tokens of each source, as an all-gather gives them.
  // The sum of the sources is split; one source: it is the sum already.
  const int64_t* counts = nullptr;
  int32_t num_sources = 1;
  int64_t* quotas = nullptr;   // [num_layers, num_slots], set; -1 in a layer that is refused
  SplitPeak* peaks = nullptr;  // [num_layers], the least maximum, set; null: not wanted
  // [num_layers], set: kNotRefused, the lowest expert with a count below 0 or above
  // kMaxSplitTokens, or num_experts where the sum is above kMaxSplitTokens.
  int32_t* refused = nullptr;
  // [num_layers, num_slots], set: of `source` the tokens for each slot, as OwnQuotasByPrefix has
  // them; -1 in a layer that is refused. Null: not wanted.
  int64_t* own = nullptr;
  int32_t source = 0;
  std::byte* scratch = nullptr;  // SplitScratchBytes of them; none where that is 0
};
static_assert(std::is_trivially_copyable_v<SplitArgs>);

// Words of a set of GPUs for which the kernel is compiled.
inline int32_t NumSplitWords(int32_t num_gpus) { return num_gpus <= GpuSet<1>::kMaxGpus ? 1 : 2; }

EPLB_HOST_DEVICE inline SplitSizes LargestSizes(const SplitTables& tables) {
  return {tables.num_gpus, tables.max_parts, tables.max_replicated};
}

// Bytes that SplitOneLayer needs: the counts of all sources, then the scratch memory of the split.
EPLB_HOST_DEVICE inline int64_t ScratchBytesOfLayer(const SplitTables& tables, int32_t num_words) {
  return static_cast<int64_t>(sizeof(int64_t)) * tables.num_experts +
         ScratchBytesOf(LargestSizes(tables), num_words);
}

// One layer's numbers in `args`.
struct SplitRows {
  const int64_t* counts;  // counts of source 0; those of the next are `stride` behind
  int64_t stride;
  int64_t* quotas;
  int64_t* own;  // null: not wanted
};

EPLB_HOST_DEVICE inline SplitRows RowsOfLayer(const SplitArgs& args, int32_t index) {
  const int64_t first_slot = int64_t{index} * args.tables.num_slots;
  return {.counts = args.counts + int64_t{index} * args.tables.num_experts,
          .stride = int64_t{args.num_layers} * args.tables.num_experts,
          .quotas = args.quotas + first_slot,
          .own = args.own == nullptr ? nullptr : args.own + first_slot};
}

// Writes the sums of the sources to `sums`; returns as SplitArgs::refused.
template <class Team>
EPLB_HOST_DEVICE int32_t SumSources(const SplitArgs& args, const SplitRows& rows, int64_t* sums,
                                    const Team& team) {
  const int32_t num_experts = args.tables.num_experts;
  int64_t refused = 0;  // num_experts - expert, so that the lowest is the largest
  int64_t all = 0;
  team.ForEach(num_experts, [&](int32_t expert) {
    int64_t sum = 0;
    bool fits = true;
    for (int32_t source = 0; source < args.num_sources; ++source) {
      const int64_t count = rows.counts[source * rows.stride + expert];
      fits = fits && count >= 0 && count <= kMaxSplitTokens - sum;
      if (fits) sum += count;
    }
    sums[expert] = sum;
    all += sum;
    if (!fits && num_experts - expert > refused) refused = num_experts - expert;
  });
  refused = team.Max(refused);
  if (refused > 0) return static_cast<int32_t>(num_experts - refused);
  return team.Sum(all) > kMaxSplitTokens ? num_experts : kNotRefused;
}

// An expert's tokens, ordered by source, fill its slots in the order of replica rank.
template <class Team>
EPLB_HOST_DEVICE void WriteOwn(const SplitArgs& args, const SplitLayer& layer,
                               const SplitRows& rows, const Team& team) {
  team.ForEach(layer.num_slots, [&](int32_t slot) { rows.own[slot] = 0; });
  team.ForEach(args.tables.num_experts, [&](int32_t expert) {
    int64_t before = 0;
    for (int32_t source = 0; source < args.source; ++source) {
      before += rows.counts[source * rows.stride + expert];
    }
    int64_t left = rows.counts[args.source * rows.stride + expert];
    for (int32_t i = layer.first_slot[expert]; i < layer.first_slot[expert + 1]; ++i) {
      const int32_t slot = layer.replica_slot[i];
      const int64_t quota = rows.quotas[slot];
      const int64_t skipped = before < quota ? before : quota;
      const int64_t taken = left < quota - skipped ? left : quota - skipped;
      before -= skipped;
      left -= taken;
      rows.own[slot] = taken;
    }
  });
}

// index: of the layer, 0..num_layers-1. memory: ScratchBytesOfLayer, aligned to 8 bytes.
template <int kWords, class Team>
EPLB_HOST_DEVICE void SplitOneLayer(const SplitArgs& args, int32_t index, std::byte* memory,
                                    const Team& team) {
  const SplitLayer layer = args.tables.Layer(args.first_layer + index);
  const SplitRows rows = RowsOfLayer(args, index);
  auto* const sums = reinterpret_cast<int64_t*>(memory);
  const int32_t refused = SumSources(args, rows, sums, team);
  if (team.leader()) args.refused[index] = refused;
  if (refused != kNotRefused) {
    team.ForEach(layer.num_slots, [&](int32_t slot) {
      rows.quotas[slot] = -1;
      if (rows.own != nullptr) rows.own[slot] = -1;
    });
    if (team.leader() && args.peaks != nullptr) args.peaks[index] = SplitPeak{};
    return;
  }
  const SplitScratch<kWords> scratch = CarveScratch<kWords>(
      LargestSizes(args.tables), memory + sizeof(int64_t) * args.tables.num_experts);
  SplitBody<kWords, Team> body(layer, scratch, team);
  body.FindHolders();
  const LeastPeak<kWords> least = body.Solve(sums, args.tables.slack);
  body.WriteQuotas(rows.quotas);
  if (team.leader() && args.peaks != nullptr) args.peaks[index] = least.peak;
  if (rows.own != nullptr) WriteOwn(args, layer, rows, team);
}

}  // namespace eplb::cuda
