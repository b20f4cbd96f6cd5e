// Scratch memory of the split of one layer, carved from one piece of memory of the CPU or the GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"

namespace eplb {

// Arrays that SplitBody works on.
template <int kWords>
struct SplitScratch {
  int64_t* part_tokens = nullptr;        // by part
  int64_t* equal = nullptr;              // by part, tokens under equal shares
  int64_t* each = nullptr;               // [num_replicated], tokens of each slot at equal shares
  int64_t* rest = nullptr;               // [num_replicated], number of slots that have one more
  int64_t* above = nullptr;              // [num_replicated]: SplitBody::ShareEqually
  int64_t* fixed = nullptr;              // [G]
  int64_t* room = nullptr;               // [G]
  int64_t* limit = nullptr;              // [G + 1], by step of a path: SplitBody::PushFrom
  int64_t* pushed_before = nullptr;      // [G + 1], by step of a path
  GpuSet<kWords>* holders = nullptr;     // [num_replicated], found once for a placement
  GpuSet<kWords>* neighbours = nullptr;  // [G], GPUs that share an expert; once for a placement
  GpuSet<kWords>* steps = nullptr;       // [G], GPUs to which tokens of the GPU can move
  GpuSet<kWords>* levels = nullptr;      // [G + 1], GPUs by their distance from room
  int32_t* path = nullptr;               // [G + 1], GPUs
  int32_t* path_out = nullptr;           // [G + 1], the part that tokens leave at each step
  int32_t* path_in = nullptr;            // [G + 1], the part that they enter
};

// Sizes of a layer, or the largest of several layers.
struct SplitSizes {
  int32_t num_gpus = 0;
  int32_t num_parts = 0;
  int32_t num_replicated = 0;
};

// Words of a set of GPUs for which SplitBody is compiled.
EPLB_HOST_DEVICE inline int32_t NumSetWords(int32_t num_gpus) {
  if (num_gpus <= GpuSet<1>::kMaxGpus) return 1;
  return num_gpus <= GpuSet<4>::kMaxGpus ? 4 : 16;
}

// Bytes of one layer's scratch memory, a multiple of 8.
EPLB_HOST_DEVICE inline int64_t ScratchBytesOf(const SplitSizes& sizes, int32_t num_words) {
  const int64_t replicated = sizes.num_replicated;
  const int64_t gpus = sizes.num_gpus;
  const int64_t sets = (replicated + 3 * gpus + 1) * num_words;
  const int64_t paths = 2 * (gpus + 1);  // three of 4 bytes an entry, rounded up
  return 8 * (2 * int64_t{sizes.num_parts} + 3 * replicated + 4 * gpus + 2 + sets + paths);
}

// memory: ScratchBytesOf, aligned to 8 bytes.
template <int kWords>
EPLB_HOST_DEVICE SplitScratch<kWords> CarveScratch(const SplitSizes& sizes, std::byte* memory) {
  static_assert(sizeof(GpuSet<kWords>) == kWords * sizeof(int64_t));
  auto* next = reinterpret_cast<int64_t*>(memory);
  const auto take = [&next](int64_t count) {
    int64_t* const begin = next;
    next += count;
    return begin;
  };
  const auto take_sets = [&take](int64_t count) {
    return reinterpret_cast<GpuSet<kWords>*>(take(count * kWords));
  };
  SplitScratch<kWords> scratch;
  scratch.part_tokens = take(sizes.num_parts);
  scratch.equal = take(sizes.num_parts);
  scratch.each = take(sizes.num_replicated);
  scratch.rest = take(sizes.num_replicated);
  scratch.above = take(sizes.num_replicated);
  scratch.fixed = take(sizes.num_gpus);
  scratch.room = take(sizes.num_gpus);
  scratch.limit = take(sizes.num_gpus + 1);
  scratch.pushed_before = take(sizes.num_gpus + 1);
  scratch.holders = take_sets(sizes.num_replicated);
  scratch.neighbours = take_sets(sizes.num_gpus);
  scratch.steps = take_sets(sizes.num_gpus);
  scratch.levels = take_sets(sizes.num_gpus + 1);
  scratch.path = reinterpret_cast<int32_t*>(next);
  scratch.path_out = scratch.path + sizes.num_gpus + 1;
  scratch.path_in = scratch.path_out + sizes.num_gpus + 1;
  return scratch;
}

}  // namespace eplb
