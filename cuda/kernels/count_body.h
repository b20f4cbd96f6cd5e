// The body of the token count: which counters router choices add to. No barrier, no atomic: the
// caller adds, on the GPU with atomics, on the CPU plainly.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/aligned_access.h"

namespace eplb::cuda {

enum class ExpertIdType { kInt32, kInt64 };

// Pointers are to device memory for LaunchCount, to host memory for CountOnHost.
struct CountArgs {
  const void* expert_ids =
      nullptr;  // [num_tokens, top_k], ids of id_type, row-major: the router's top-k
  ExpertIdType id_type = ExpertIdType::kInt32;
  const uint8_t* is_padding = nullptr;  // [num_tokens], not 0: leave the token out; null: none is
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int64_t* counts = nullptr;        // [num_experts], tokens per expert are added to it
  int64_t* out_of_range = nullptr;  // [1], choices outside 0..num_experts-1 are added to it
  // [NumChunks, num_experts], written: the choices of each chunk, by which LaunchQuotaRoute routes.
  // Null: none.
  int32_t* chunk_counts = nullptr;
};
static_assert(std::is_trivially_copyable_v<CountArgs>);

EPLB_HOST_DEVICE inline uint32_t Smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// The number of choices is at most 2^31.
EPLB_HOST_DEVICE inline uint32_t NumChoices(const CountArgs& args) {
  return static_cast<uint32_t>(args.num_tokens) * static_cast<uint32_t>(args.top_k);
}

// A block takes one chunk of neighbouring choices. Chunks follow from the number of choices alone,
// so that a table of chunks has one size on every device. An H100 has 132 multiprocessors; more
// blocks would add more histograms to memory, and blocks of fewer choices would do little else.
inline uint32_t kMaxChunks = 132;  // candidate of a bench
inline constexpr uint32_t kMinChunkChoices = 1024;
inline constexpr uint32_t kChunkUnit = 256;

inline uint32_t ChunkChoices(uint32_t num_choices) {
  const uint32_t num_units = (num_choices + kChunkUnit - 1) / kChunkUnit;
  const uint32_t choices = (num_units + kMaxChunks - 1) / kMaxChunks * kChunkUnit;
  return choices > kMinChunkChoices ? choices : kMinChunkChoices;
}

inline uint32_t NumChunks(uint32_t num_choices) {
  const uint32_t choices = ChunkChoices(num_choices);
  return (num_choices + choices - 1) / choices;
}

// A bin is an expert, or one of the next two.
EPLB_HOST_DEVICE inline int32_t OutOfRangeBin(const CountArgs& args) { return args.num_experts; }
// Choices of padding, whatever their id, and those after the last one. No counter has this bin.
EPLB_HOST_DEVICE inline int32_t NoBin(const CountArgs& args) { return args.num_experts + 1; }
EPLB_HOST_DEVICE inline int32_t NumBins(const CountArgs& args) { return args.num_experts + 2; }

template <class ExpertId>
EPLB_HOST_DEVICE inline int32_t BinOfId(const CountArgs& args, ExpertId id) {
  using Unsigned = std::make_unsigned_t<ExpertId>;  // ids below 0 are large
  const auto num_experts = static_cast<Unsigned>(args.num_experts);
  const auto bin = static_cast<Unsigned>(id);
  return static_cast<int32_t>(bin < num_experts ? bin : num_experts);
}

// Divides the index of a choice by top_k with one multiplication. A GPU has no instruction that
// divides. source: Granlund, Montgomery 1994, "Division by invariant integers using
// multiplication". The dividend is below 2^31, so the multiplier needs 32 bits.
struct TokenDivider {
  uint32_t multiplier = 0;
  int32_t shift = 0;
};

inline TokenDivider MakeTokenDivider(int32_t top_k) {
  int32_t shift = 31;
  while (int64_t{1} << (shift - 31) < top_k) ++shift;
  const auto divisor = static_cast<uint64_t>(top_k);
  return {static_cast<uint32_t>(((uint64_t{1} << shift) + divisor - 1) / divisor), shift};
}

// Returns the token of choice `index`.
EPLB_HOST_DEVICE inline uint32_t TokenOfChoice(const TokenDivider& divider, uint32_t index) {
  return static_cast<uint32_t>(uint64_t{index} * divider.multiplier >> divider.shift);
}

// Returns the bin of choice `index`, which has this id.
template <class ExpertId>
EPLB_HOST_DEVICE inline int32_t BinOfChoice(const CountArgs& args, const TokenDivider& divider,
                                            uint32_t index, ExpertId id) {
  const bool is_padding =
      args.is_padding != nullptr && args.is_padding[TokenOfChoice(divider, index)] != 0;
  return is_padding ? NoBin(args) : BinOfId(args, id);
}
template <class ExpertId>
EPLB_HOST_DEVICE inline int32_t BinOfChoice(const CountArgs& args, const TokenDivider& divider,
                                            uint32_t index) {
  return BinOfChoice(args, divider, index, static_cast<const ExpertId*>(args.expert_ids)[index]);
}

// Blocks and threads of a kernel over choices: a chunk a block.
inline constexpr int32_t kMaxChoiceThreads = 1024;
struct ChoiceGrid {
  int32_t blocks = 0;  // NumChunks; 0 if there are no choices
  int32_t threads = 0;
  uint32_t chunk_choices = 0;
};

struct Chunk {
  uint32_t begin = 0;  // a multiple of kChunkUnit
  uint32_t end = 0;
};

EPLB_HOST_DEVICE inline Chunk ChunkAt(const CountArgs& args, const ChoiceGrid& grid,
                                      uint32_t index) {
  const uint32_t begin = index * grid.chunk_choices;
  return {begin, Smaller(begin + grid.chunk_choices, NumChoices(args))};
}

// Four neighbours, which a thread of the GPU takes at once, by vectors. `first` is the first
// choice, a multiple of kQuad.
inline constexpr uint32_t kQuad = 4;

template <class ExpertId>
struct alignas(16) IdQuad {
  ExpertId ids[kQuad];
};

struct BinQuad {
  int32_t bins[kQuad];
};

struct TokenQuad {
  uint32_t tokens[kQuad];
};

// Returns the choice at which the quads of a chunk end: none are before it in an array that is not
// aligned, and up to three choices of the last chunk are after it.
template <class ExpertId>
EPLB_HOST_DEVICE inline uint32_t EndOfQuads(const Chunk& chunk, const void* array) {
  return IsAligned(array, alignof(IdQuad<ExpertId>)) ? chunk.end - chunk.end % kQuad : chunk.begin;
}

template <class ExpertId>
EPLB_HOST_DEVICE inline IdQuad<ExpertId> LoadQuad(const CountArgs& args, uint32_t first) {
  return LoadAligned<IdQuad<ExpertId>>(static_cast<const ExpertId*>(args.expert_ids) + first);
}

struct QuadStart {
  uint32_t token = 0;  // of the first choice
  uint32_t next = 0;   // distance to the first choice of the next token
};

EPLB_HOST_DEVICE inline QuadStart StartOfQuad(const CountArgs& args, const TokenDivider& divider,
                                              uint32_t first) {
  const uint32_t token = TokenOfChoice(divider, first);
  return {token, (token + 1) * static_cast<uint32_t>(args.top_k) - first};
}

EPLB_HOST_DEVICE inline TokenQuad TokensOfQuad(const CountArgs& args, QuadStart start) {
  TokenQuad result;
  EPLB_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    if (i == start.next) {
      ++start.token;
      start.next += static_cast<uint32_t>(args.top_k);
    }
    result.tokens[i] = start.token;
  }
  return result;
}

template <class ExpertId>
EPLB_HOST_DEVICE inline BinQuad BinsOfQuad(const CountArgs& args, const TokenDivider& divider,
                                           uint32_t first, const IdQuad<ExpertId>& chosen) {
  BinQuad result;
  EPLB_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) result.bins[i] = BinOfId(args, chosen.ids[i]);
  if (args.is_padding == nullptr) return result;
  const TokenQuad of = TokensOfQuad(args, StartOfQuad(args, divider, first));
  EPLB_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    if (args.is_padding[of.tokens[i]] != 0) result.bins[i] = NoBin(args);
  }
  return result;
}

// Returns the counter of a bin. REQUIRES: an expert or OutOfRangeBin.
EPLB_HOST_DEVICE inline int64_t* CountCell(const CountArgs& args, int32_t bin) {
  return bin < args.num_experts ? args.counts + bin : args.out_of_range;
}

}  // namespace eplb::cuda
