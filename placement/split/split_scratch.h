// Scratch memory of the split of one layer, carved from one piece of memory of the CPU or the GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "placement/split/gpu_set.h"

namespace eplb {

// Hands out arrays of a piece of memory, one after the other, each aligned to 8 bytes.
class Carver {
 public:
  EPLB_HOST_DEVICE explicit Carver(std::byte* memory) : begin_(memory), next_(memory) {}

  template <class T>
  EPLB_HOST_DEVICE T* Take(int64_t count) {
    auto* const begin = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(T)) + 7) / 8 * 8;
    return begin;
  }
  EPLB_HOST_DEVICE void Align(int64_t bytes) { next_ += (bytes - taken() % bytes) % bytes; }
  EPLB_HOST_DEVICE int64_t taken() const { return next_ - begin_; }

 private:
  std::byte* begin_;
  std::byte* next_;
};

// Returns the bytes of all arrays that `carve` takes from a Carver.
template <class Carve>
int64_t CarvedBytes(const Carve& carve) {
  alignas(8) std::byte nowhere[8];  // is neither read nor written
  Carver carver(nowhere);
  carve(carver);
  return carver.taken();
}

// One step of a path from a GPU above the peak to room.
template <class Token>
struct PathStep {
  Token limit;          // the most that may be pushed in all while the path has this step
  Token pushed_before;  // tokens that were pushed before the step began
  int32_t gpu;          // GPU that the step leaves
  int32_t out;          // the part that tokens leave
  int32_t in;           // the part that they enter
};

// Arrays that SplitBody works on.
template <int kWords, class Token>
struct SplitScratch {
  Token* part_tokens;      // by part
  Token* equal;            // by part, tokens under equal shares
  Token* each;             // [num_replicated], tokens of each slot at equal shares
  Token* rest;             // [num_replicated], number of slots that have one more
  Token* above;            // [num_replicated]: SplitBody::ShareEqually
  Token* fixed;            // [G], tokens of fixed experts
  Token* load;             // [G], tokens at equal shares
  PathStep<Token>* path;   // [G]
  GpuSet<kWords>* levels;  // [G + 1], GPUs by their distance from room
  Token* room;             // [G], unless the team keeps it in registers
  Token* allowed;          // [G], in registers where `room` is
  GpuSet<kWords>* steps;   // [G], in registers where `room` is
};

// Sizes of a layer, or bounds of several layers.
struct SplitSizes {
  int32_t num_gpus = 0;
  int32_t num_parts = 0;
  int32_t num_replicated = 0;
};

// in_registers: the team keeps `room`, `allowed` and `steps` there.
template <int kWords, class Token>
EPLB_HOST_DEVICE SplitScratch<kWords, Token> CarveScratch(const SplitSizes& sizes, Carver& carver,
                                                          bool in_registers = false) {
  SplitScratch<kWords, Token> scratch;
  scratch.part_tokens = carver.Take<Token>(sizes.num_parts);
  scratch.equal = carver.Take<Token>(sizes.num_parts);
  scratch.each = carver.Take<Token>(sizes.num_replicated);
  scratch.rest = carver.Take<Token>(sizes.num_replicated);
  scratch.above = carver.Take<Token>(sizes.num_replicated);
  scratch.fixed = carver.Take<Token>(sizes.num_gpus);
  scratch.load = carver.Take<Token>(sizes.num_gpus);
  scratch.path = carver.Take<PathStep<Token>>(sizes.num_gpus);
  scratch.levels = carver.Take<GpuSet<kWords>>(sizes.num_gpus + 1);
  const int32_t in_memory = in_registers ? 0 : sizes.num_gpus;
  scratch.room = carver.Take<Token>(in_memory);
  scratch.allowed = carver.Take<Token>(in_memory);
  scratch.steps = carver.Take<GpuSet<kWords>>(in_memory);
  return scratch;
}

}  // namespace eplb
